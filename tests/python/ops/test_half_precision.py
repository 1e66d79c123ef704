# SPDX-License-Identifier: Apache-2.0
"""Sums of half precision are added in float32 and rounded once: results that are near the exact
ones on the CPU are so on the device, with and without sharding, and if partial sums exceed the
type.

`pytest --full-ops tests/python/ops/test_half_precision.py` runs all calls on all inputs
in all modes.
"""

import re

import pytest
import torch
from half_calls import CALLS, INPUTS
from torch import nn
from torch.utils._pytree import tree_leaves

import torch_spmd as spmd

DTYPES = (torch.float16, torch.bfloat16)
MODES = ("whole", "rows", "columns")
NARROW = {torch.float16: 11, torch.bfloat16: 8}  # bits


def outcome(call, x, mode="whole"):
    """The results and the gradient, on the host."""
    x = x.clone().detach()
    if mode != "whole":
        spec = ("a", None) if mode == "rows" else (None, "a")
        spmd.mark_sharding(x, spmd.make_mesh((3,), ("a",)), spec)
    x.requires_grad_()
    results = [t for t in tree_leaves(call(x)) if isinstance(t, torch.Tensor)]
    seeds = [t for t in results if t.requires_grad]
    results += torch.autograd.grad(seeds, x, [torch.ones_like(t) for t in seeds])
    return [t.detach().cpu() for t in results]


def wrong_in(got, cpu, exact, dtype):
    """A description of results whose error exceeds one rounding and the CPU's error."""
    words = []
    for k, (a, b, e) in enumerate(zip(got, cpu, exact, strict=True)):
        assert a.dtype == b.dtype and a.shape == b.shape
        a, b, e = a.double(), b.double(), e.double()
        fits = e.to(dtype).isfinite() & b.isfinite()
        if not fits.any():
            continue
        theirs = (b - e)[fits].abs().max()
        allowed = e.abs() * 2.0 ** -NARROW[dtype] * 2 + 2 * theirs + 1e-12
        far = fits & ~((a - e).abs() <= allowed)
        if far.any():
            i = int(far.flatten().nonzero()[0])
            one = "{} for {}, on the CPU {}".format(*(float(t.flatten()[i]) for t in (a, e, b)))
            words.append(f"result {k}: {int(far.sum())} are wrong, one is {one}")
    return words


def check(name, kind, dtype, mode):
    call, x = CALLS[name], INPUTS[kind]().to(dtype)
    cpu = outcome(call, x)
    exact = outcome(call, x.double())
    assert not wrong_in(outcome(call, x.to("spmd"), mode), cpu, exact, dtype)


@pytest.mark.parametrize("name", CALLS)
def test_sums(name, full_ops):
    """One combination of each call; the next call's is another."""
    every = [(k, d, m) for m in MODES for d in DTYPES for k in INPUTS]
    first = list(CALLS).index(name)
    for kind, dtype, mode in every if full_ops else (every[first % 3], every[6 + first * 5 % 12]):
        check(name, kind, dtype, mode)


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
def test_partial_sums_beyond_the_range_of_the_type_cancel(dtype):
    """A device's part of each of these sums exceeds float16, or loses the digits that matter in the
    end."""
    mesh = spmd.make_mesh((4,), ("a",))
    x = torch.full((8, 4), 256.0)
    x[4:] = -256
    x[0] = 260
    d = spmd.mark_sharding(x.to(dtype).to("spmd"), mesh, ("a", None))
    assert (d * 128).sum(0).tolist() == [512] * 4
    other = torch.full((8, 3), 256.0).to(dtype).to("spmd")
    spmd.mark_sharding(other, mesh, ("a", None))
    assert (d.t() @ other).tolist() == [[1024] * 3] * 4
    w = torch.full((4, 3), 32.0).to(dtype).to("spmd")
    assert (d @ w).sum(0).tolist() == [512] * 3


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
def test_gradients_of_micro_steps_are_kept_in_float32(dtype):
    """Partial sums stay unreduced between programs; what is added to them is not rounded before the
    end."""
    mesh = spmd.make_mesh((4,), ("a",))
    w = torch.zeros(2, dtype=dtype, device="spmd", requires_grad=True)
    for scale in (512.0, 1.0, 1.0, -512.0):
        x = torch.full((4, 2), scale, dtype=dtype).to("spmd")
        (spmd.mark_sharding(x, mesh, ("a", None)) * w).sum().backward()
    assert w.grad.tolist() == [8, 8]


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
def test_bytes_on_the_wire_are_those_of_the_type(dtype):
    mesh = spmd.make_mesh((4,), ("a",))
    x = spmd.mark_sharding(torch.ones(64, 1024, dtype=dtype).to("spmd"), mesh, ("a", None))
    assert x.sum(0)[0].item() == 64
    rows = [row for row in spmd.debug.collectives().rows if row.kind == "all_reduce"]
    assert [row.bytes for row in rows] == [2 * 1024]


def test_counts_of_a_frequent_index():
    """More than bfloat16 can count by ones. (The CPU adds 1000 thousandths to a half.)"""
    indices = torch.zeros(1000, dtype=torch.long, device="spmd")
    weight = torch.ones(4, 2, dtype=torch.bfloat16, device="spmd", requires_grad=True)
    torch.nn.functional.embedding(indices, weight, scale_grad_by_freq=True).sum().backward()
    torch.testing.assert_close(weight.grad[0].float().cpu(), torch.ones(2), atol=0, rtol=0.01)


@pytest.mark.parametrize("weighted", [False, True], ids=["", "weighted"])
def test_cross_entropy_of_more_rows_than_float16_counts(weighted):
    rows = 70_000
    logits = torch.zeros(rows, 4)
    logits[:, 1] = 1
    weight = torch.tensor([1.0, 2, 3, 4]) if weighted else None
    found = []
    for device, dtype in (("cpu", torch.float64), ("spmd", torch.float16)):
        x = logits.to(dtype).to(device).requires_grad_()
        target = (torch.arange(rows) % 4).to(device)
        of_classes = None if weight is None else weight.to(dtype).to(device)
        loss = torch.nn.functional.cross_entropy(x, target, weight=of_classes)
        (loss * 1024).backward()
        found.append((loss.detach().cpu().double(), x.grad.cpu().double()))
    torch.testing.assert_close(found[1][0], found[0][0], rtol=1e-3, atol=0)
    torch.testing.assert_close(found[1][1], found[0][1], rtol=4e-3, atol=1e-7)


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
def test_gradient_of_a_sure_prediction(dtype):
    """A probability near 1 must not become 1 before it is taken from 1."""
    logits = torch.zeros(6, 4)
    logits[:, 0] = 7.0
    grads = []
    for device, kind in (("cpu", torch.float64), ("cpu", dtype), ("spmd", dtype)):
        x = logits.to(dtype).to(kind).to(device).requires_grad_()
        torch.nn.functional.cross_entropy(x, torch.zeros(6, dtype=torch.long).to(device)).backward()
        grads.append(x.grad.cpu())
    assert not wrong_in([grads[2]], [grads[1]], [grads[0]], dtype)


def numbers_in_place():
    """PyTorch's ops on tensors and numbers that have a form that writes the first tensor."""
    plain = {"Tensor", "number", "bool", "float"}
    for schema in torch._C._jit_get_all_schemas():
        packet, overload = schema.name.removeprefix("aten::"), schema.overload_name or "default"
        kinds = [str(a.type) for a in schema.arguments]
        if schema.name == packet or kinds[:1] != ["Tensor"] or not set(kinds) <= plain:
            continue
        written = getattr(getattr(torch.ops.aten, f"{packet}_", None), overload, None)
        if written is not None and "number" in kinds and not packet.endswith("_"):
            yield getattr(getattr(torch.ops.aten, packet), overload), written


@pytest.mark.modes("free_moves")
@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16, torch.float32], ids=str)
def test_a_number_is_the_same_in_place(dtype):
    """mul_.Scalar of PyTorch's rounds it to the tensor's type first, mul.Scalar does not."""
    compared, wrong = 0, []
    for op, written in numbers_in_place():
        torch.manual_seed(0)
        args = op._schema.arguments
        values = [
            (torch.randn(64, 33).abs() + 0.5).to(dtype) if str(a.type) == "Tensor"
            else a.default_value if a.has_default_value() and str(a.type) != "number"
            else 0.7
            for a in args
        ]  # fmt: skip
        named = {a.name: v for a, v in zip(args, values) if a.kwarg_only}
        given = [v for a, v in zip(args, values) if not a.kwarg_only]
        on_device = [v.to("spmd") if isinstance(v, torch.Tensor) else v for v in given]
        try:
            want = op(*given, **named)
            written(*on_device, **named)
        except (IndexError, RuntimeError, TypeError):
            continue  # no dimension or number of this kind; no comparison in place
        if want.dtype == dtype:
            compared += 1
            if not torch.equal(on_device[0].cpu(), want):
                wrong.append(op.name())
    assert not wrong
    assert compared >= 15


@pytest.mark.modes("free_moves")
@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16], ids=str)
@pytest.mark.parametrize("held", [False, True], ids=["in place", "held"])
def test_scaled_in_half_precision(dtype, held):
    x = torch.linspace(0.1, 7, 500).to(dtype)
    d = x.to("spmd")
    before = d.clone() if held else None
    x *= 0.9
    d *= 0.9
    assert torch.equal(d.cpu(), x)
    assert before is None or before.cpu()[0] == torch.tensor(0.1).to(dtype)


@pytest.mark.parametrize("spec", [(None, None), ("x", None), (None, "x")])
@pytest.mark.parametrize("weighted", [False, True])
def test_a_cross_entropy_under_autocast_holds_nothing_in_float32(spec, weighted):
    """The loss and its gradient are those of float32 within the rounding of the logits."""
    torch.manual_seed(0)
    x, w = torch.randn(64, 16), torch.randn(48, 16)
    targets = torch.randint(48, (64,))
    targets[::7] = -100
    weight = torch.rand(48) if weighted else None
    mesh = spmd.make_mesh((4,), ("x",))

    def loss_of(x, w, targets, weight):
        logits = nn.functional.linear(x, w)
        return nn.functional.cross_entropy(logits, targets, weight)

    plain = w.clone().requires_grad_()
    expected = loss_of(x, plain, targets, weight)
    expected.backward()
    own = w.to("spmd").requires_grad_()
    data = spmd.mark_sharding(x.to("spmd"), mesh, (spec[0], None))
    spmd.mark_sharding(own, mesh, (spec[1], None))
    given = None if weight is None else weight.to("spmd")
    with torch.autocast("spmd", torch.bfloat16):
        loss = loss_of(data, own, targets.to("spmd"), given)
    loss.backward()
    spmd.sync()
    text = str(spmd.debug.print_program())
    shapes = re.findall(r": (\w+)\[64,48\]", text)
    # Along sharded classes a log softmax is several calls, in float32.
    assert "bf16" in shapes and (spec[1] is not None or set(shapes) == {"bf16"}), text
    assert loss.item() == pytest.approx(expected.item(), rel=1e-2)
    scale = plain.grad.abs().max().item()
    torch.testing.assert_close(own.grad.cpu(), plain.grad, rtol=2e-2, atol=2e-2 * scale)
