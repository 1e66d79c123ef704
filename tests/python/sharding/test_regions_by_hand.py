# SPDX-License-Identifier: Apache-2.0
"""Models that are sharded by hand, in manual regions: the losses and gradients of PyTorch, and the
bytes and instructions of automatic code."""

import collections
import re

import pytest
import torch
import torch.nn.functional as F
from micro_steps import end_micro_steps
from modes import MODES, in_mode
from torch import nn

import torch_spmd as spmd
from torch_spmd import _C, P


def numbers(*shape, seed=0):
    return torch.randn(*shape, dtype=torch.float64, generator=torch.Generator().manual_seed(seed))


# Each is a function of tensors, the same by hand on shards, the specs of its arguments, and the
# arguments. Results are the same on all devices.


def mlp(x, up, bias, down):
    return torch.tanh(x @ up + bias) @ down


def mlp_by_hand(x, up, bias, down):
    return spmd.lax.psum(mlp(x, up, bias, down), "x")


def attention(x, q, k, v, out):
    def heads(w):
        return torch.einsum("bsw,whd->bhsd", x, w)

    y = F.scaled_dot_product_attention(heads(q), heads(k), heads(v), is_causal=True)
    return torch.einsum("bhsd,hdw->bsw", y, out)


def attention_by_hand(*args):
    return spmd.lax.psum(attention(*args), "x")


def block(x, q, k, v, out, up, bias, down):
    x = x + attention(F.layer_norm(x, x.shape[-1:]), q, k, v, out)
    return x + mlp(F.layer_norm(x, x.shape[-1:]), up, bias, down)


def block_by_hand(x, q, k, v, out, up, bias, down):
    x = x + attention_by_hand(F.layer_norm(x, x.shape[-1:]), q, k, v, out)
    return x + mlp_by_hand(F.layer_norm(x, x.shape[-1:]), up, bias, down)


def fsdp(x, up, bias, down):
    return mlp(x, up, bias, down).square().sum()


def fsdp_by_hand(x, *parameters):
    gathered = [spmd.lax.all_gather(p, "x", tiled=True) for p in parameters]
    return spmd.lax.psum(fsdp(x, *gathered), "x")


def cross_entropy(x, w, target):
    return F.cross_entropy(x @ w, target)


def cross_entropy_by_hand(x, w, target):
    logits = x @ w
    size = logits.shape[1]
    largest = spmd.lax.pmax(logits.detach().amax(1), "x")
    total = spmd.lax.psum((logits - largest[:, None]).exp().sum(1), "x")
    own = target - spmd.lax.axis_index("x") * size
    here = (own >= 0) & (own < size)
    found = logits.gather(1, own.clamp(0, size - 1)[:, None])[:, 0]
    return (total.log() + largest - spmd.lax.psum(torch.where(here, found, 0), "x")).mean()


HEADS, ROWS = P(None, "x"), P("x")
MLP = (P(None, "x"), P("x"), P("x"))
ATTENTION = (HEADS, HEADS, HEADS, ROWS)
MODELS = {
    "mlp": (mlp, mlp_by_hand, (P(), *MLP), [(8, 12), (12, 24), (24,), (24, 12)]),
    "attention": (
        attention,
        attention_by_hand,
        (P(), *ATTENTION),
        [(2, 6, 12), (12, 4, 3), (12, 4, 3), (12, 4, 3), (4, 3, 12)],
    ),
    "block": (
        block,
        block_by_hand,
        (P(), *ATTENTION, *MLP),
        [(2, 6, 12), (12, 4, 3), (12, 4, 3), (12, 4, 3), (4, 3, 12), (12, 24), (24,), (24, 12)],
    ),
    "fsdp": (fsdp, fsdp_by_hand, (ROWS,) * 4, [(8, 12), (12, 24), (24,), (24, 12)]),
    "cross entropy": (cross_entropy, cross_entropy_by_hand, (P(), HEADS, P()), [(6, 12), (12, 20)]),
}


def arguments(name):
    *_, shapes = MODELS[name]
    args = [numbers(*shape, seed=i) for i, shape in enumerate(shapes)]
    return [*args, torch.arange(6) * 3] if name == "cross entropy" else args


def differentiated(function, args):
    """The result and the gradients of its sum of squares."""
    result = function(*args)
    result.square().sum().backward()
    return [result.detach(), *(t.grad for t in args if t.requires_grad)]


def marked(name, mesh):
    _, _, specs, _ = MODELS[name]
    tensors = [
        spmd.mark_sharding(t.to("spmd"), mesh, P(*spec, *(None,) * (t.dim() - len(spec))))
        for t, spec in zip(arguments(name), specs)
    ]
    spmd.sync(wait=True)
    return [t.requires_grad_(t.is_floating_point()) for t in tensors]


@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize("name", MODELS)
def test_losses_and_gradients(name, mode):
    plain, by_hand, specs, _ = MODELS[name]
    expected = differentiated(
        plain, [t.requires_grad_(t.is_floating_point()) for t in arguments(name)]
    )
    for size in (2, 4):
        mesh = spmd.make_mesh((size,), ("x",))
        with in_mode(mode):
            got = differentiated(spmd.shard_map(by_hand, mesh, specs, P()), marked(name, mesh))
            for ours, theirs in zip(got, expected, strict=True):
                torch.testing.assert_close(ours.cpu(), theirs)


def rows_and_ops(name, mesh, function):
    args = marked(name, mesh)
    kept = differentiated(function, args)
    spmd.sync(wait=True)
    rows = sorted((row.kind, row.bytes) for row in spmd.debug.collectives() if row.bytes > 8)
    assert kept
    return rows, _C.last_program().program_text()


@pytest.mark.parametrize("name", MODELS)
def test_bytes_are_those_of_automatic_code(name):
    mesh = spmd.make_mesh((4,), ("x",))
    plain, by_hand, specs, _ = MODELS[name]
    ours, _ = rows_and_ops(name, mesh, spmd.shard_map(by_hand, mesh, specs, P()))
    theirs, _ = rows_and_ops(name, mesh, plain)
    total = lambda rows: sum(size for _, size in rows)  # noqa: E731
    assert total(ours) <= total(theirs), (ours, theirs)


def test_gradients_of_several_passes_lie_as_the_arguments_do():
    """A pass adds to the gradient of the one before in place, whose mark binds only that one."""
    mesh = spmd.make_mesh((4,), ("x",))
    w = spmd.mark_sharding(numbers(8, 12).to("spmd"), mesh, P("x", None)).requires_grad_()
    v, x = numbers(12, seed=1).to("spmd").requires_grad_(), numbers(8, 12, seed=2)
    region = spmd.shard_map(
        lambda w, v, x: spmd.lax.psum((w * x * v).sin().sum(), "x"), mesh, (ROWS, P(), ROWS), P()
    )
    for count in range(1, 4):
        region(w, v, x.to("spmd")).backward()
        spmd.sync(wait=True)
        for t, spec in ((w, P("x", None)), (v, P(None))):
            assert spmd.sharding_of(t.grad).spec == spec
        expected = [t.detach().cpu().requires_grad_() for t in (w, v)]
        (expected[0] * x * expected[1]).sin().sum().backward()
        for t, one in zip((w, v), expected):
            torch.testing.assert_close(t.grad.cpu(), count * one.grad)
    end_micro_steps()


def ops(text):
    return collections.Counter(
        line.split(" = ")[1].split("(")[0] for line in text.splitlines() if " = " in line
    )


def test_a_cross_entropy_by_hand_multiplies_whole_matrices():
    """Only the lookup of a target's score works on a device's own classes: the scores are split for
    it, and its gradient is put together."""
    mesh = spmd.make_mesh((4,), ("x",))
    _, by_hand, specs, _ = MODELS["cross entropy"]
    _, text = rows_and_ops("cross entropy", mesh, spmd.shard_map(by_hand, mesh, specs, P()))
    found = ops(text)
    assert found["call aten::bmm"] == 0
    assert found["call aten::permute"] == 2  # of the scores, and of the gradient
    assert found.total() <= 55


PRODUCTS = re.compile(r"call aten::(mm|bmm|matmul|linear)|call spmd::linear_.*")


def without_views(found):
    kinds = collections.Counter()
    for op, count in found.items():
        if op in ("call aten::permute", "call aten::view"):
            continue
        kind = "product" if PRODUCTS.fullmatch(op) else op.partition(".")[0]
        kinds[kind if op.startswith("call") else "collective"] += count
    return kinds


@pytest.mark.parametrize("with_bias", [False, True], ids=["", "bias"])
def test_a_region_is_the_program_of_automatic_code(with_bias):
    """Four layers of an MLP, forwards and backwards: as many instructions, but for transpositions,
    of which a region needs none, since products read and give transposed matrices."""
    mesh = spmd.make_mesh((4,), ("x",))

    def layer(x, up, down, *bias):
        return torch.tanh(x @ up + bias[0] if bias else x @ up) @ down

    def layers(function):
        def run(x, *weights):
            for _ in range(4):
                x = x + function(x, *weights)
            return x.square().sum()

        return run

    specs = (P(), P(None, "x"), P("x", None), P("x"))[: 4 if with_bias else 3]

    def run(function):
        shapes = ((8, 12), (12, 24), (24, 12), (24,))[: len(specs)]
        args = [numbers(*shape, seed=seed).to("spmd") for seed, shape in enumerate(shapes)]
        for arg, spec in zip(args[1:], specs[1:]):
            spmd.mark_sharding(arg, mesh, spec)
        args = [arg.requires_grad_() for arg in args]
        spmd.sync(wait=True)
        function(*args).backward()
        spmd.sync(wait=True)
        found = ops(_C.last_program().program_text())
        return found, [t.grad.cpu() for t in args]

    by_hand = spmd.shard_map(lambda *args: spmd.lax.psum(layer(*args), "x"), mesh, specs, P())
    ours, gradients = run(layers(by_hand))
    theirs, expected = run(layers(layer))
    for a, b in zip(gradients, expected):
        torch.testing.assert_close(a, b)
    assert without_views(ours) == without_views(theirs)
    assert ours["call aten::permute"] <= theirs["call aten::permute"]
    # The gradient of a bias loses a dimension of size 1 in each layer, not once at the end.
    assert ours["call aten::view"] <= theirs["call aten::view"] + (3 if with_bias else 0)
    assert ours.total() <= theirs.total()


# What a transformer's layers consist of, as it is written for shards: a function of tensors, the
# same by hand, the specs of its arguments and result, and the arguments.


def split(x, w):
    y = x @ w
    return y.view(*y.shape[:2], -1, 3).transpose(1, 2)


def softmax_attention(x, q, k, v, out):
    q, k, v = split(x, q), split(x, k), split(x, v)
    y = torch.softmax(q @ k.transpose(-1, -2) * 3**-0.5, -1) @ v
    return y.transpose(1, 2).flatten(2) @ out


def fused_attention(x, q, k, v, out):
    q, k, v = split(x, q), split(x, k), split(x, v)
    y = F.scaled_dot_product_attention(q, k, v, is_causal=True)
    return y.transpose(1, 2).flatten(2) @ out


def norms(x, g):
    return torch.softmax(F.layer_norm(x, x.shape[-1:], g), -1).log_softmax(-1)


def rows(table, indices):
    return F.embedding(indices, table)


def summed(function):
    return lambda *args: spmd.lax.psum(function(*args), "x")


def rms_block(x, scale, q, k, v, out, scale2, up, down, psum=lambda t: t):
    """Both halves begin with a norm, whose gradient is added to the one that passes it by."""
    y = F.rms_norm(x, x.shape[-1:], scale)
    x = x + psum(fused_attention(y, q, k, v, out))
    return x + psum(torch.tanh(F.rms_norm(x, x.shape[-1:], scale2) @ up) @ down)


def rms_block_by_hand(*args):
    return rms_block(*args, psum=lambda t: spmd.lax.psum(t, "x"))


WEIGHTS = [(12, 24)] * 3 + [(24, 12)]
OF_ONE_HEAD = [(12, 12)] * 4
OF_TWO_AXES = (summed, (P("d"), *(HEADS,) * 3, ROWS), P("d"), [(4, 6, 12), *WEIGHTS])
LAYERS = {
    "softmax": (softmax_attention, summed, (P(), *(HEADS,) * 3, ROWS), P(), [(2, 6, 12), *WEIGHTS]),
    "attention": (fused_attention, summed, (P(), *(HEADS,) * 3, ROWS), P(), [(2, 6, 12), *WEIGHTS]),
    "norms": (norms, None, (ROWS, P()), ROWS, [(8, 6, 12), (12,)]),
    "norms of a sequence": (norms, None, (HEADS, P()), HEADS, [(4, 8, 12), (12,)]),
    "norms of one row": (norms, None, (ROWS, P()), ROWS, [(4, 6, 12), (12,)]),
    "rows of a table": (rows, None, (P(), ROWS), ROWS, [(10, 12), None]),
    "fsdp": (fsdp, lambda _: fsdp_by_hand, *MODELS["fsdp"][2:3], P(), MODELS["fsdp"][3]),
    "loss": (
        lambda x, w: (x @ w).square().sum(),
        summed,
        (ROWS, P()),
        P(),
        [(8, 12), (12, 20)],
    ),
    "sum": (lambda x: x.sin().sum(0), summed, (ROWS,), P(), [(8, 12)]),
    "cumulative sum": (lambda x: x.sin().cumsum(-1).cos(), None, (ROWS,), ROWS, [(8, 12)]),
    "gather": (lambda x, i: x.sin().gather(1, i), None, (ROWS, ROWS), ROWS, [(8, 12), None]),
    "select": (lambda x: x.sin()[:, 2].cos(), None, (ROWS,), ROWS, [(8, 12)]),
    "slice": (lambda x: x.sin()[:, 1:3].cos(), None, (ROWS,), ROWS, [(8, 12)]),
    "cat": (lambda x: torch.cat([x.sin(), x.cos()], 1), None, (ROWS,), ROWS, [(8, 12)]),
    "topk": (lambda x: x.sin().topk(2, -1).values, None, (ROWS,), ROWS, [(8, 12)]),
    "softmax of one head": (
        softmax_attention,
        summed,
        (P(), *(HEADS,) * 3, ROWS),
        P(),
        [(2, 6, 12), *OF_ONE_HEAD],
    ),
    "attention of one head": (
        fused_attention,
        summed,
        (P(), *(HEADS,) * 3, ROWS),
        P(),
        [(2, 6, 12), *OF_ONE_HEAD],
    ),
    "einsum of one head": (
        attention,
        lambda _: attention_by_hand,
        (P(), *ATTENTION),
        P(),
        MODELS["attention"][3],
    ),
    "mlp of two axes": (
        lambda x, up, down: F.gelu(x @ up) @ down,
        summed,
        (P("d"), HEADS, ROWS),
        P("d"),
        [(8, 12), (12, 24), (24, 12)],
    ),
    "block with norms": (
        rms_block,
        lambda _: rms_block_by_hand,
        (P(), P(), *(HEADS,) * 3, ROWS, P(), HEADS, ROWS),
        P(),
        [(2, 6, 12), (12,), *WEIGHTS, (12,), (12, 24), (24, 12)],
    ),
    "softmax of two axes": (softmax_attention, *OF_TWO_AXES),
    "attention of two axes": (fused_attention, *OF_TWO_AXES),
    "softmax of one head, of two axes": (
        softmax_attention,
        *OF_TWO_AXES[:3],
        [(4, 6, 12), *[(12, 6)] * 3, (6, 12)],
    ),
    "attention of one head, of two axes": (
        fused_attention,
        *OF_TWO_AXES[:3],
        [(4, 6, 12), *[(12, 6)] * 3, (6, 12)],
    ),
}


@pytest.mark.parametrize("name", LAYERS)
def test_layers_are_the_programs_of_automatic_code(name):
    """The same numbers, no more bytes and collectives, and as many instructions of each kind, but
    for products of another form, what is added to a partial sum as a term of it instead of to the
    sum, and views, of which there are no more together."""
    function, combined, specs, out, shapes = LAYERS[name]
    mesh = (
        spmd.make_mesh((2, 2), ("d", "x")) if "two axes" in name else spmd.make_mesh((4,), ("x",))
    )
    by_hand = spmd.shard_map(combined(function) if combined else function, mesh, specs, out)

    def run(function):
        args = [
            torch.arange(24).view(8, 3) * 7 % 10 if shape is None else numbers(*shape, seed=seed)
            for seed, shape in enumerate(shapes)
        ]
        args = [
            spmd.mark_sharding(t.to("spmd"), mesh, P(*spec, *(None,) * (t.dim() - len(spec))))
            for t, spec in zip(args, specs)
        ]
        spmd.sync(wait=True)
        results = differentiated(function, [t.requires_grad_(t.is_floating_point()) for t in args])
        spmd.sync(wait=True)
        total = sum(row.bytes for row in spmd.debug.collectives())
        return [t.cpu() for t in results], total, ops(_C.last_program().program_text())

    theirs, their_bytes, expected = run(function)
    ours, our_bytes, found = run(by_hand)
    for a, b in zip(ours, theirs, strict=True):
        torch.testing.assert_close(a, b)
    assert our_bytes <= their_bytes
    assert found.total() <= expected.total()
    del found["term"], expected["term"]
    ours, theirs = without_views(found), without_views(expected)
    assert ours.pop("collective", 0) <= theirs.pop("collective", 0)
    assert ours == theirs


def test_a_plan_of_a_region_is_that_of_automatic_code():
    class Layer(nn.Module):
        def __init__(self):
            super().__init__()
            self.up = nn.Parameter(torch.empty(512, 2048))
            self.down = nn.Parameter(torch.empty(2048, 512))

        def forward(self, x):
            return torch.tanh(x @ self.up) @ self.down

    class ByHand(Layer):
        def forward(self, x):
            region = spmd.shard_map(
                lambda x, up, down: spmd.lax.psum(torch.tanh(x @ up) @ down, "model"),
                None,
                (P(), P(None, "model"), P("model")),
                P(),
            )
            return region(x, self.up, self.down)

    def row(layer):
        (found,) = spmd.plan(
            layer,
            torch.empty(64, 512, device="meta"),
            on="v5e-8",
            mesh={"model": 8},
            specs={"up": (None, "model"), "down": ("model", None)},
            loss=lambda model, x: model(x).square().sum(),
        )
        return found

    ours, theirs = row(ByHand), row(Layer)
    assert ours.wire == theirs.wire
    assert ours.seconds == pytest.approx(theirs.seconds, rel=0.01)
    assert ours.hbm == pytest.approx(theirs.hbm, rel=0.05)
