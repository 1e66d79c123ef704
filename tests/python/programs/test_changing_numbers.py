# SPDX-License-Identifier: Apache-2.0
"""Loops in which a number changes: right results, and not one program per number."""

import warnings

import pytest
import rotation
import torch
import torch.nn.functional as F
from changing_numbers import is_structural, numbers_of, programs_for_the_third
from op_samples import OPS, first_cuts, ops_of, ranks, samples
from reported import reported
from torch import nn

import torch_spmd as spmd
from torch_spmd import _C


def compiles():
    return reported()["compiles"]


def ramp(*sizes):
    n = int(torch.Size(sizes).numel())
    return torch.linspace(-2, 3, n).reshape(sizes)


X = ramp(8, 12)
IMAGE = ramp(4, 6, 5, 5)

# What is computed in the k-th round from x and k; each is compared with the CPU.
LOOPS = {
    "arange": lambda x, k: x + torch.arange(k, k + 12, device=x.device),
    "arange of floats": lambda x, k: x * torch.arange(0.5 * k, 0.5 * k + 12, device=x.device),
    "arange steps": lambda x, k: x * torch.arange(0, 12 * (k + 1), k + 1, device=x.device),
    "linspace": lambda x, k: x + torch.linspace(k, k + 1.5, 12, device=x.device),
    "full": lambda x, k: x + torch.full((12,), k + 0.5, device=x.device),
    "roll": lambda x, k: x.roll(k, 0),
    "roll two": lambda x, k: x.roll((k, -k), (0, 1)),
    "roll flat": lambda x, k: x.roll(-k),
    "slice": lambda x, k: x[k : k + 3],
    "slice from the end": lambda x, k: x[-k - 3 : -k] * 2,
    "slices of the last dimension": lambda x, k: x.narrow(-1, k, 3) * x.select(-1, -k)[:, None],
    "part from the end": lambda x, k: torch.narrow_copy(x, -1, k, 2),
    "select": lambda x, k: x[k].sum() + x[:, k],
    "narrow": lambda x, k: x.narrow(1, k, 2),
    "write a slice": lambda x, k: x.clone().index_put_((torch.tensor(k),), x[0]),
    "tril": lambda x, k: x.tril(k - 3),
    "triu": lambda x, k: x.triu(k) + x.to(torch.int64).triu(-k),
    "pad": lambda x, k: F.pad(x, (1, 2, 3, 0), value=k + 0.5),
    "pad shorter": lambda x, k: F.pad(x, (-1, 2), value=-k - 0.5),
    "clamp": lambda x, k: x.clamp(-0.1 * k, 0.2 * k + 0.1),
    "lerp": lambda x, k: x.lerp(x + 1, 0.1 * k),
    "pow": lambda x, k: x.abs().pow(k + 0.5) + (k + 1.5) ** x,
    "addcmul": lambda x, k: torch.addcmul(x, x, x, value=k + 0.5),
    "masked_fill": lambda x, k: x.masked_fill(x > 0, k + 0.5),
    "scatter": lambda x, k: x.scatter(
        1, torch.zeros(8, 1, dtype=torch.int64).to(x.device), k + 0.5
    ),
    "renorm": lambda x, k: x.renorm(2, 0, 0.5 * k + 0.5),
    "threshold": lambda x, k: F.threshold(x, 0.1 * k, 0.5 * k),
    "leaky_relu": lambda x, k: F.leaky_relu(x, 0.01 + 0.1 * k),
    "elu": lambda x, k: F.elu(x, 0.5 + 0.1 * k) + F.celu(x, 0.5 + 0.1 * k),
    "softplus": lambda x, k: F.softplus(x, 1 + 0.1 * k, 2 + k),
    "shrink": lambda x, k: F.softshrink(x, 0.1 * k) + F.hardshrink(x, 0.2 * k),
    "hardtanh": lambda x, k: F.hardtanh(x, -0.1 - k, 0.1 + k),
    "huber": lambda x, k: F.huber_loss(x, x * x, delta=0.5 + 0.1 * k),
    "smooth_l1": lambda x, k: F.smooth_l1_loss(x, x * x, beta=0.5 + 0.1 * k),
    "margin": lambda x, k: F.multi_margin_loss(x, torch.arange(8).to(x.device), margin=1 + 0.1 * k),
    "layer_norm": lambda x, k: F.layer_norm(x, (12,), eps=0.1 * k + 1e-3),
    "rms_norm": lambda x, k: F.rms_norm(x, (12,), eps=0.1 * k + 1e-3),
    "group_norm": lambda x, k: F.group_norm(x, 3, eps=0.1 * k + 1e-3),
    "normalize": lambda x, k: F.normalize(x, dim=1, eps=k + 0.5),
    "variance": lambda x, k: x.var(0, correction=0.3 * k) + x.std(1, correction=k + 1)[0],
    "ignore_index": lambda x, k: F.cross_entropy(
        x.square(), (torch.arange(8) % 5).to(x.device), ignore_index=k
    ),
    "ignore_index of images": lambda x, k: F.nll_loss(
        x.view(4, 3, 8).log_softmax(1),
        (torch.arange(32) % 3).view(4, 8).to(x.device),
        ignore_index=k % 3,
        reduction="sum",
    ),
    "padding_idx": lambda x, k: F.embedding(
        (torch.arange(20) % 8).to(x.device), x, padding_idx=k, scale_grad_by_freq=True
    ),
    "divisor": lambda x, k: F.avg_pool2d(x.view(2, 4, 12), (2, 3), divisor_override=k + 2),
    "order of a norm": lambda x, k: (
        torch.linalg.vector_norm(x + 4, k + 2.5, dim=0) + (x + 4).norm(-k - 0.5)
    ),
    "order of distances": lambda x, k: (
        torch.dist(x + 4, x, k + 2.5) + F.pairwise_distance(x + 4, x, p=k + 2.5)
    ),
    "normalize by another order": lambda x, k: F.normalize(x + 4, p=k + 2.5),
    "cdist": lambda x, k: torch.cdist(x, x.flip(0) * 2, p=k + 2.5) + F.pdist(x, k + 2.5).sum(),
    "renorm by another order": lambda x, k: (x + 4).renorm(k + 2.5, 0, 1.5),
    "orders of a list": lambda x, k: sum(torch._foreach_norm([x + 4, x + 5], k + 2.5)),
    "logit": lambda x, k: x.logit(0.05 * k + 0.01),
    "nan_to_num": lambda x, k: x.log().nan_to_num(nan=0.5 + k),
    "kthvalue": lambda x, k: x.kthvalue(k + 1, dim=1).values,
    "attention": lambda x, k: F.scaled_dot_product_attention(
        *(x.view(2, 4, 4, 3) * i for i in (1, 2, 3)), scale=0.1 * k + 0.1
    ),
    "foreach": lambda x, k: sum(
        (*torch._foreach_pow([x, x * 2], 2), *torch._foreach_clamp_min([x, x], 0.1 * k))
    ),
    "out of place": lambda x, k: torch.add(x, x, alpha=k + 0.5) * (k + 0.5) - k / 7,
}


def loop(body, x, cut, rounds=5):
    """The number of programs that each round compiles; compares its results and gradients."""
    _C.forget_programs()
    counts = []
    for k in range(1, rounds + 1):
        results = []
        for device in ("cpu", "spmd"):
            given = x.clone().to(device)
            if device == "spmd" and cut is not None:
                spmd.mark_sharding(given, spmd.make_mesh((2,), ("x",)), cut)
            given.requires_grad_()
            before = compiles()
            with warnings.catch_warnings():
                warnings.simplefilter("ignore")
                y = body(given, k)
                floats = y.is_floating_point() and y.requires_grad
                grad = torch.autograd.grad(y.sin().sum(), given)[0] if floats else y
                if device == "spmd":
                    spmd.sync()
            results.append([t.detach().cpu() for t in (y, grad)])
        counts.append(compiles() - before)
        for mine, expected in zip(results[1], results[0]):
            torch.testing.assert_close(mine, expected, rtol=1e-4, atol=1e-5, equal_nan=True)
    return counts


@pytest.mark.parametrize("cut", [None, ("x", None), (None, "x")], ids=["whole", "rows", "columns"])
@pytest.mark.parametrize("name", LOOPS)
def test_a_loop_compiles_twice_at_most(name, cut):
    counts = loop(LOOPS[name], X, cut)
    assert sum(counts) <= 2 and counts[2:] == [0, 0, 0], counts


@pytest.mark.parametrize("cut", [None, ("x", None, None, None), (None, "x", None, None)])
@pytest.mark.parametrize("training", [True, False])
def test_batch_norm(training, cut):
    def body(x, k):
        mean, var = torch.zeros(6).to(x.device), torch.ones(6).to(x.device)
        y = F.batch_norm(
            x, mean, var, training=training, momentum=0.15 + 0.1 * k, eps=0.1 * k + 1e-3
        )
        return y + (mean + var).view(6, 1, 1)

    counts = loop(body, IMAGE, cut)
    assert sum(counts) <= 2 and counts[2:] == [0, 0, 0], counts


FUSED = {
    "adamw": lambda p: torch.optim.AdamW(p, 1e-2, fused=True),
    "amsgrad": lambda p: torch.optim.Adam(p, 1e-2, fused=True, amsgrad=True, weight_decay=0.1),
    "momentum": lambda p: torch.optim.SGD(p, 1e-2, momentum=0.9, fused=True, dampening=0.1),
    "adam on lists": lambda p: torch.optim.Adam(p, 1e-2, foreach=True),
}


@pytest.mark.parametrize("kind", FUSED)
def test_a_schedule_of_momentum_and_decay(kind):
    """As OneCycleLR has it: learning rate, momentum and betas change with every step."""

    def train(device):
        torch.manual_seed(0)
        layer = nn.Linear(6, 4)
        layer.to(device)
        optimizer = FUSED[kind](layer.parameters())
        schedule = torch.optim.lr_scheduler.OneCycleLR(optimizer, 0.1, total_steps=12)
        counts = []
        for k in range(6):
            before = compiles()
            optimizer.param_groups[0]["weight_decay"] = 0.01 * (k + 1)
            layer(ramp(3, 6).to(device)).square().sum().backward()
            optimizer.step()
            schedule.step()
            optimizer.zero_grad()
            counts.append(compiles() - before)
        return [p.detach().cpu() for p in layer.parameters()], counts

    want, _ = train("cpu")
    got, counts = train("spmd")
    for mine, expected in zip(got, want):
        torch.testing.assert_close(mine, expected, rtol=1e-4, atol=1e-5)
    assert counts[3:] == [0, 0, 0], counts


def test_draws_take_their_parameters_when_they_run():
    counts = []
    for k in range(1, 5):
        before = compiles()
        x = torch.empty(1000, device="spmd").normal_(mean=k, std=0.01 * k)
        y = torch.empty(1000, device="spmd").uniform_(k, k + 0.5)
        z = F.dropout(torch.ones(1000, device="spmd"), 0.1 * k)
        spmd.sync()
        counts.append(compiles() - before)
        assert abs(x.cpu().mean() - k) < 0.01
        assert k <= y.cpu().min() and y.cpu().max() <= k + 0.5
        assert abs((z.cpu() == 0).float().mean() - 0.1 * k) < 0.1
    assert counts[1:] == [0, 0, 0]


def test_a_users_op_gets_its_number_and_its_shape():
    @torch.library.custom_op("changing::scaled", mutates_args=())
    def scaled(x: torch.Tensor, by: float, copies: float) -> torch.Tensor:
        return (x * by).repeat(int(copies), 1)

    @scaled.register_fake
    def _(x, by, copies):
        return x.new_empty(int(copies) * x.shape[0], x.shape[1])

    counts = []
    for k in range(1, 7):
        before = compiles()
        y = scaled(X.to("spmd"), 0.5 * k, 2.0 if k < 6 else 3.0)
        spmd.sync()
        counts.append(compiles() - before)
        torch.testing.assert_close(y.cpu(), (X * 0.5 * k).repeat(2 if k < 6 else 3, 1))
    assert counts[1:5] == [0] * 4 and counts[5] == 1


def test_invalid_numbers_are_refused_at_their_line():
    x = X.to("spmd")
    F.huber_loss(x, x, delta=0.5)
    with pytest.raises(RuntimeError, match="delta"):
        F.huber_loss(x, x, delta=-1.0)
    F.gelu(x)
    with pytest.raises(RuntimeError, match="approximate argument must be either none or tanh"):
        F.gelu(x, approximate="sigmoid")


def test_only_the_start_that_changes_is_taken_when_the_program_runs():
    mesh = spmd.make_mesh((2,), ("x",))
    x = spmd.mark_sharding(X.to("spmd"), mesh, ("x", None))
    _C.forget_programs()
    for k in range(4):
        y = x[:, 2:8] * x[:, k : k + 6]
        spmd.sync()
        torch.testing.assert_close(y.cpu(), X[:, 2:8] * X[:, k : k + 6])
    text = _C.last_program().traced_text()
    assert "aten::slice.Tensor" in text and text.count("spmd::slice_start") == 1


def test_a_second_start_that_changes_is_taken_too():
    x = X.to("spmd")
    counts = []
    for i, k in [(0, 1), (0, 2), (0, 3), (1, 2), (2, 3), (3, 1)]:
        before = compiles()
        y = x[i : i + 4] + x[k : k + 4]
        spmd.sync()
        counts.append(compiles() - before)
        torch.testing.assert_close(y.cpu(), X[i : i + 4] + X[k : k + 4])
    assert counts == [1, 1, 0, 1, 0, 0]


def last_reason():
    return spmd.debug.explain_compile().rows[-1].reason


def test_explain_compile_names_the_argument():
    x = X.to("spmd")
    for p in (3.0, 1.0):
        x.norm(p).cpu()
    assert "ord 3.0 → 1.0" in last_reason() and "test_changing_numbers.py:" in last_reason()
    for n in (8, 6):
        F.silu(X[:n].to("spmd")).cpu()
    assert "self f32[8,12] → f32[6,12]" in last_reason()
    for k in (2, 3):
        x.roll(k, 0).cpu()
    assert "shifts [2] → [3]" in last_reason()
    assert "shifts of aten::roll is passed at run time from now on" in last_reason()


def test_explain_compile_names_the_mark():
    mesh = spmd.make_mesh((2,), ("x",))
    for spec in (("x", None), (None, "x")):
        (spmd.mark_sharding(X.to("spmd"), mesh, spec) * 3).cpu()
    assert "the mark of self ('x', None) on [x=2]" in last_reason()
    assert "→ (None, 'x') on [x=2]" in last_reason()


# One sample, sharded. For all: python tests/python/support/changing_numbers.py
SAMPLED = [name for name in ops_of("float32") if rotation.place(name, 4) == 0]


@pytest.mark.parametrize("name", SAMPLED)
def test_ops_of_pytorch(name):
    sample = next((s for s in samples(OPS[name]) if numbers_of(s)), None)
    if sample is None or "sparse" in name:
        return
    cut = next(iter(first_cuts(ranks(sample), 0)), None)
    for leaf in numbers_of(sample):
        count = programs_for_the_third(name, sample, leaf, cut)
        assert not count or is_structural(name, leaf), last_reason()
