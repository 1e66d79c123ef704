# SPDX-License-Identifier: Apache-2.0
"""Results that depend on values: masks, nonzero, unique, draws by weight, lengths of sequences.
Nothing runs on the host, and what is sharded stays sharded."""

import pytest
import torch
import torch.nn.functional as F
from cut_results import check, each_dim, make_mesh, values
from reported import reported

import torch_spmd as spmd
from torch_spmd import _C


def rounded(*shape, seed=0):
    return values(*shape, seed=seed).mul(1.5).round()


SELECTIONS = {
    "nonzero": lambda x: (x > 0).nonzero(),
    "nonzero as a tuple": lambda x: x.nonzero(as_tuple=True),
    "argwhere": torch.argwhere,
    "nonzero_static, fewer": lambda x: torch.nonzero_static(x, size=3),
    "nonzero_static, more": lambda x: torch.nonzero_static(x > 1, size=90, fill_value=-9),
    "masked_select": lambda x: x.masked_select(x > 0),
    "masked_select of rows": lambda x: x.masked_select(x[:1] > 0),
    "a mask": lambda x: x[x > 0],
    "a mask of rows": lambda x: x[x[:, 0] > 0],
    "a mask of columns": lambda x: x[:, x[0] > 0],
    "a mask and an index": lambda x: x[x[:, 0] >= x[:, 0].max(), torch.tensor([1])],
    "bytes": lambda x: (x > 0).nonzero().sum(0),
    "nothing": lambda x: x[x > 99],
    "written through a mask": lambda x: x.clone().index_put_((x > 0,), x[x > 0] * 2),
    "masked_scatter": lambda x: x.masked_scatter(x > 0, x.flip(0)),
    "masked_scatter of rows": lambda x: x[:1].masked_scatter(x > 0, x.flip(1)),
    "masked_scatter_": lambda x: x.clone().masked_scatter_(x[:1] > 0, x.flip(0)),
    "unique": lambda x: torch.unique(x.detach(), return_inverse=True, return_counts=True),
    "unique, values only": lambda x: x.detach().unique(),
    "unique rows": lambda x: torch.unique(
        x.detach().clamp(-1, 1)[:, :2], dim=0, return_inverse=True, return_counts=True
    ),
    "unique columns": lambda x: torch.unique(x.detach()[:2].sign(), dim=1, return_counts=True),
    "unique_consecutive": lambda x: torch.unique_consecutive(x.detach(), True, True),
    "unique_consecutive rows": lambda x: torch.unique_consecutive(
        x.detach()[:, :1].sign(), return_inverse=True, return_counts=True, dim=0
    ),
}


@pytest.mark.parametrize("name", SELECTIONS)
@pytest.mark.parametrize("shape", [(9, 7), (2, 3), (24, 5)])
def test_chosen_elements(name, shape):
    x = rounded(*shape)
    before = reported()["host_fallbacks"]
    check(SELECTIONS[name], (x,), each_dim(x))
    assert reported()["host_fallbacks"] == before


@pytest.mark.parametrize("shape", [(), (5,), (2, 3, 4), (3, 1, 2, 2)])
def test_chosen_elements_of_other_ranks(shape):
    x = rounded(*shape)
    cuts = list(each_dim(x)) or [((4,), (None,))]
    for choose in (
        torch.nonzero,
        lambda x: x.detach().unique(),
        lambda x: x[x != 1],
        lambda x: x.masked_select(x < 1),
    ):
        check(choose, (x,), cuts)


def test_the_gradient_of_what_a_mask_chooses():
    x, source = rounded(8, 6), values(8, 6, seed=1)

    def chosen(x):
        return x[x.detach() > 0].square()

    def scattered(x, source):
        return x.masked_scatter(x.detach() > 0, source).square()

    check(chosen, (x,), each_dim(x))
    check(
        scattered, (x, source), [((2, 2), (("x", "y"), ("y", None))), ((4,), (None, ("x", None)))]
    )


def test_choosing_gathers_nothing_large():
    """Of a large tensor, only the chosen elements and the totals of rows are sent."""
    mesh = spmd.Mesh(range(8), (8,), ("x",))
    x = torch.randn(2048, 512)
    u = spmd.mark_sharding(x.to("spmd"), mesh, ("x", None))
    spmd.sync(wait=True)
    _C.forget_programs()
    assert torch.equal(u[u > 3].cpu(), x[x > 3])
    rows = [row for program in _C.programs() for row in program.collectives()]
    assert sum(row[5] for row in rows) < x.numel()  # bytes on the wire; x has four for each element


class TestMultinomial:
    WEIGHTS = torch.tensor([[0.1, 0.2, 0.0, 0.7], [3.0, 0.0, 1.0, 0.0], [1.0, 1.0, 1.0, 1.0]])

    @pytest.mark.parametrize("replacement", [True, False])
    @pytest.mark.parametrize("spec", [("x", None), (None, "x"), ("x", "y"), ("y", "x")])
    def test_draws_do_not_depend_on_the_sharding(self, replacement, spec):
        weights = torch.rand(7, 9, generator=torch.Generator().manual_seed(1))

        def draw(spec):
            torch.manual_seed(5)
            given = weights.to("spmd")
            if spec:
                spmd.mark_sharding(given, make_mesh((2, 3)), spec)
            return torch.multinomial(given, 6, replacement).cpu()

        assert torch.equal(draw(spec), draw(None))

    @pytest.mark.parametrize("samples, replacement", [(1, False), (1, True), (4000, True)])
    def test_draws_follow_the_weights(self, samples, replacement):
        torch.manual_seed(2)
        rows = 4000 // samples
        weights = self.WEIGHTS.repeat_interleave(rows, 0).to("spmd")
        drawn = torch.multinomial(weights, samples, replacement).cpu().view(3, -1)
        for row, weight in zip(drawn, self.WEIGHTS, strict=True):
            share = row.bincount(minlength=4) / row.numel()
            p = weight / weight.sum()
            assert (share[p == 0] == 0).all()
            # Five standard deviations.
            assert ((share - p).abs() <= 5 * (p * (1 - p) / row.numel()).sqrt()).all()

    def test_none_is_drawn_twice_without_replacement(self):
        weights = torch.rand(50, 6).to("spmd")
        drawn = torch.multinomial(weights, 6).cpu()
        assert torch.equal(drawn.sort(1).values, torch.arange(6).expand(50, 6))

    @pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16, torch.float64])
    def test_dtypes_and_generators(self, dtype):
        weights = torch.rand(3, 5, dtype=dtype).to("spmd")
        draw = [
            torch.multinomial(
                weights, 4, True, generator=torch.Generator("spmd").manual_seed(seed)
            ).cpu()
            for seed in (1, 1, 2)
        ]
        assert torch.equal(draw[0], draw[1]) and not torch.equal(draw[0], draw[2])

    @pytest.mark.parametrize(
        "weights, samples, replacement, what",
        [
            ([-1.0, 2.0], 1, False, "element < 0"),
            ([float("nan"), 2.0], 1, False, "nan"),
            ([float("inf"), 2.0], 1, False, "inf"),
            ([0.0, 0.0], 2, True, "sum of probabilities <= 0"),
            ([1.0, 2.0], 3, False, "without replacement"),
            ([1.0, 2.0], 0, False, "n_sample <= 0"),
        ],
    )
    def test_errors(self, weights, samples, replacement, what):
        for device in ("cpu", "spmd"):
            with pytest.raises(RuntimeError, match=what):
                torch.multinomial(torch.tensor(weights, device=device), samples, replacement)
        with pytest.raises(RuntimeError, match=what):  # pending: when it runs
            torch.multinomial(torch.tensor(weights).to("spmd") * 1, samples, replacement).cpu()

    def test_pending_weights_stay_pending(self):
        spmd.sync(wait=True)
        before = reported()["runs"]
        logits = torch.randn(3, 5).to("spmd")
        for _ in range(3):
            drawn = torch.multinomial((logits * 2).softmax(-1), 1)
            logits = logits + drawn
        drawn.cpu()
        assert reported()["runs"] == before + 1


class TestCtc:
    LENGTHS = (4, 3, 2, 1, 4, 0, 2)
    STEPS = (12, 12, 10, 9, 12, 5, 11)

    @pytest.mark.parametrize("reduction", ["mean", "sum", "none"])
    @pytest.mark.parametrize("rows", [True, False])
    @pytest.mark.parametrize("spec", [(None, "x", None), ("x", None, None), (None, "y", "x")])
    def test_as_unsharded(self, reduction, rows, spec):
        generator = torch.Generator().manual_seed(0)
        logits = torch.randn(12, 7, 5, dtype=torch.float64, generator=generator)
        size = (7, 4) if rows else (sum(self.LENGTHS),)
        targets = torch.randint(1, 5, size, generator=generator)

        def loss_and_gradient(logits, targets):
            logits = logits.detach().requires_grad_()
            loss = F.ctc_loss(
                logits.log_softmax(2),
                targets,
                torch.tensor(self.STEPS),
                torch.tensor(self.LENGTHS),
                reduction=reduction,
                zero_infinity=True,
            )
            return loss, torch.autograd.grad(loss.square().sum(), logits)[0]

        before = reported()["host_fallbacks"]
        given = spmd.mark_sharding(logits.to("spmd"), make_mesh((2, 3)), spec)
        got = loss_and_gradient(given, targets.to("spmd"))
        for a, b in zip(got, loss_and_gradient(logits, targets), strict=True):
            torch.testing.assert_close(a.cpu(), b)
        assert reported()["host_fallbacks"] == before

    def test_a_sharded_batch_reduces_one_number(self):
        mesh = make_mesh((4,))
        logits = spmd.mark_sharding(torch.randn(6, 8, 5).to("spmd"), mesh, (None, "x", None))
        logits.requires_grad_()
        targets = torch.randint(1, 5, (8, 3)).to("spmd")
        spmd.sync(wait=True)
        _C.forget_programs()
        F.ctc_loss(logits.log_softmax(2), targets, [6] * 8, [3] * 8).backward()
        logits.grad.cpu()
        rows = [row for program in _C.programs() for row in program.collectives()]
        assert [row[0] for row in rows] == ["all_reduce"] * len(rows)  # of the loss
        assert sum(row[4] for row in rows) <= 8

    @pytest.mark.parametrize("steps, lengths", [([7, 6], [1, 1]), ([6], [1, 1]), ([6, 6], [4, 1])])
    def test_lengths_that_do_not_fit(self, steps, lengths):
        for device in ("cpu", "spmd"):
            scores = torch.randn(6, 2, 5, device=device).log_softmax(2)
            with pytest.raises((RuntimeError, ValueError)):
                F.ctc_loss(
                    scores, torch.ones(2, 3, dtype=torch.long, device=device), steps, lengths
                )
                spmd.sync(wait=True)


COUNTS = torch.tensor([3, 0, 2, 5, 1, 1, 0, 4])
COUNTED = {
    "bincount": lambda x: torch.bincount(x),
    "bincount, more": lambda x: torch.bincount(x, minlength=9),
    "bincount of small integers": lambda x: torch.bincount(x.to(torch.uint8)),
    "bincount of weights": lambda x: torch.bincount(x, (x * 0.5).float()),
    "bincount of integer weights": lambda x: torch.bincount(x, x * 2),
    "repeat_interleave": torch.repeat_interleave,
    "repeat_interleave of a tensor": lambda x: x.square().repeat_interleave(x),
    "repeat_interleave of a known size": lambda x: x.repeat_interleave(x, output_size=16),
}


@pytest.mark.parametrize("cut", [False, True])
@pytest.mark.parametrize("name", COUNTED)
def test_counts_stay_on_the_device(name, cut):
    x = COUNTS.to("spmd")
    if cut:
        spmd.mark_sharding(x, spmd.make_mesh((4,), ("x",)), ("x",))
    before = reported()["host_fallbacks"]
    torch.testing.assert_close(COUNTED[name](x).cpu(), COUNTED[name](COUNTS))
    assert reported()["host_fallbacks"] == before


@pytest.mark.parametrize("call", [torch.bincount, torch.repeat_interleave])
@pytest.mark.parametrize("x", [torch.tensor([2, -1]), torch.ones(2, 2).long(), torch.ones(2)])
def test_counts_that_are_refused(call, x):
    with pytest.raises(RuntimeError) as refused:
        call(x)
    with pytest.raises(RuntimeError) as here:
        call(x.to("spmd"))
    assert str(here.value).splitlines()[0] == str(refused.value).splitlines()[0]


@pytest.mark.parametrize("call", [torch.bincount, torch.repeat_interleave])
def test_counts_of_nothing(call):
    nothing = torch.empty(0, dtype=torch.int64)
    assert torch.equal(call(nothing.to("spmd")).cpu(), call(nothing))


WINDOWS = {
    "bartlett": lambda **k: torch.bartlett_window(9, **k),
    "blackman": lambda **k: torch.blackman_window(9, periodic=False, **k),
    "hamming": lambda **k: torch.hamming_window(9, True, 0.4, 0.3, **k),
    "hann": lambda **k: torch.hann_window(9, dtype=torch.float64, **k),
    "kaiser": lambda **k: torch.kaiser_window(9, True, 9.5, **k),
    "kaiser of one": lambda **k: torch.kaiser_window(1, **k),
    "fftfreq": lambda **k: torch.fft.fftfreq(9, 0.5, **k),
    "rfftfreq": lambda **k: torch.fft.rfftfreq(9, **k),
}


@pytest.mark.parametrize("name", WINDOWS)
def test_windows_are_made_on_the_device(name):
    before = reported()["host_fallbacks"]
    got = WINDOWS[name](device="spmd")
    torch.testing.assert_close(got.cpu(), WINDOWS[name]())
    assert reported()["host_fallbacks"] == before


@pytest.mark.parametrize("dtype", [torch.int64, torch.int32, torch.float32, torch.uint8])
def test_permutations_are_drawn_on_the_device(dtype):
    before = reported()["host_fallbacks"]
    n = 100
    drawn = torch.randperm(n, device="spmd", dtype=dtype)
    other = torch.randperm(n, device="spmd", dtype=dtype)
    out = torch.empty(0, dtype=dtype, device="spmd")
    torch.randperm(n, out=out)
    for t in (drawn, other, out):
        assert t.dtype == dtype
        assert torch.equal(t.cpu().sort().values, torch.arange(n, dtype=dtype))
    assert not torch.equal(drawn.cpu(), other.cpu())
    assert torch.randperm(0, device="spmd").shape == (0,)
    assert reported()["host_fallbacks"] == before


@pytest.mark.parametrize("arguments", [{"n": -1}, {"n": 300, "dtype": torch.uint8}], ids=str)
def test_permutations_that_are_refused(arguments):
    with pytest.raises(RuntimeError) as refused:
        torch.randperm(**arguments)
    with pytest.raises(RuntimeError) as here:
        torch.randperm(**arguments, device="spmd")
    assert str(here.value).splitlines()[0] == str(refused.value).splitlines()[0]


@pytest.mark.parametrize("inplace", [False, True])
def test_rrelu_draws_slopes_on_the_device(inplace):
    x = values(24, 6)
    there = spmd.mark_sharding(x.to("spmd"), spmd.make_mesh((4,), ("x",)), ("x", None))
    before = reported()["host_fallbacks"]
    leaf = there.clone().requires_grad_()
    y = F.rrelu(leaf * 1, 0.1, 0.3, training=True, inplace=inplace)
    y.sum().backward()
    assert spmd.sharding_of(y).spec == ("x", None)
    slope = y.detach().cpu() / x
    assert reported()["host_fallbacks"] == before
    torch.testing.assert_close(slope[x > 0], torch.ones_like(slope[x > 0]))
    below = slope[x < 0]
    assert below.min() >= 0.0999 and below.max() <= 0.3001 and below.std() > 0.01
    torch.testing.assert_close(leaf.grad.cpu(), slope)
    torch.testing.assert_close(F.rrelu(there).cpu(), F.rrelu(x))


@pytest.mark.parametrize("order", [2.0, 1.0])
def test_rows_of_an_embedding_are_shortened_where_they_are(order):
    rows, index = values(16, 6), torch.tensor([[3, 0, 3], [15, 8, 0]])
    weight = spmd.mark_sharding(rows.to("spmd"), spmd.make_mesh((4,), ("x",)), ("x", None))
    before = reported()["host_fallbacks"]
    got = F.embedding(index.to("spmd"), weight, max_norm=1.0, norm_type=order)
    want = F.embedding(index, rows, max_norm=1.0, norm_type=order)
    assert reported()["host_fallbacks"] == before
    torch.testing.assert_close([got.cpu(), weight.cpu()], [want, rows])
    assert spmd.sharding_of(weight).spec == ("x", None)


def test_a_shift_in_place_stays_on_the_device():
    x = torch.arange(8).to("spmd")
    before = reported()["host_fallbacks"]
    x <<= 2
    x >>= torch.ones(8, dtype=torch.int64).to("spmd")
    assert x.tolist() == (torch.arange(8) * 2).tolist()
    assert reported()["host_fallbacks"] == before


def test_detach_in_place_in_inference_mode_stays_on_the_device():
    before = reported()["host_fallbacks"]
    with torch.inference_mode():
        x = spmd.mark_sharding(
            torch.ones(8, 4).to("spmd"), spmd.make_mesh((4,), ("x",)), ("x", None)
        )
        y = x * 2
        assert y.detach_() is y
        assert spmd.sharding_of(y).spec == ("x", None)
    assert reported()["host_fallbacks"] == before
