# SPDX-License-Identifier: Apache-2.0
"""Grouped products (mixtures of experts) and products of scaled operands in eight bits, under every
sharding."""

import itertools

import pytest
import torch
import torch.nn.functional as F

import torch_spmd as spmd
from torch_spmd import _C

TOKENS, WIDTH, HIDDEN, EXPERTS = 32, 16, 32, 4
ENDS = torch.tensor([8, 8, 13, 32], dtype=torch.int32)  # of 8, 0, 5 and 19 tokens
F8 = torch.float8_e4m3fn


def wire_bytes():
    return sum(row[5] for program in _C.programs() for row in program.collectives())


def operands(form, dtype=torch.float32):
    """Two matrices (or batches) whose product is grouped, and the specs that can shard them."""
    torch.manual_seed(0)
    shapes = {
        "rows": ((TOKENS, WIDTH), (EXPERTS, WIDTH, HIDDEN)),
        "contracted": ((WIDTH, TOKENS), (TOKENS, HIDDEN)),
        "columns": ((EXPERTS, HIDDEN, WIDTH), (WIDTH, TOKENS)),
        "batches": ((EXPERTS, 8, WIDTH), (EXPERTS, WIDTH, HIDDEN)),
    }
    a, b = (torch.randn(shape).to(dtype) for shape in shapes[form])
    return a, b, None if form == "batches" else ENDS


def product(a, b, ends):
    return F.grouped_mm(a, b, offs=ends)


@pytest.mark.parametrize("form", ["rows", "contracted", "columns", "batches"])
def test_grouped_products_equal_eager_under_every_sharding(form):
    mesh = spmd.make_mesh((2, 2), ("x", "y"))
    a, b, ends = operands(form)
    host = [a.clone().requires_grad_(), b.clone().requires_grad_()]
    expected = product(*host, ends)
    grad = torch.randn(expected.shape)
    expected.backward(grad)
    cuts = ["x", ("x", "y"), None]
    for cut_a, cut_b in itertools.product(range(a.dim()), range(b.dim())):
        for axes_a, axes_b in (("x", "y"), ("x", "x"), (("x", "y"), None), (None, ("x", "y"))):
            assert axes_a in cuts or axes_a is None
            ours = []
            for t, dim, axes in ((a, cut_a, axes_a), (b, cut_b, axes_b)):
                spec = [None] * t.dim()
                spec[dim] = axes
                t = spmd.mark_sharding(t.to("spmd"), mesh, tuple(spec))
                ours.append(t.requires_grad_())
            found = product(*ours, None if ends is None else ends.to("spmd"))
            found.backward(grad.to("spmd"))
            torch.testing.assert_close(found.cpu(), expected.detach(), rtol=1e-5, atol=1e-5)
            for t, h in zip(ours, host, strict=True):
                torch.testing.assert_close(t.grad.cpu(), h.grad, rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
def test_half_types_on_one_device_equal_eager(dtype):
    a, b, ends = operands("rows", dtype)
    found = product(a.to("spmd"), b.to("spmd"), ends.to("spmd"))
    assert found.dtype == dtype
    assert torch.equal(found.cpu(), product(a, b, ends))


def test_sharded_experts_are_not_gathered():
    """Each device computes the tokens of its own experts; only the result is summed."""
    mesh = spmd.make_mesh((4,), ("expert",))
    a, b, ends = operands("rows")
    b = spmd.mark_sharding(b.to("spmd"), mesh, ("expert", None, None))
    _C.forget_programs()
    found = product(a.to("spmd"), b, ends.to("spmd"))
    torch.testing.assert_close(found.cpu(), product(*operands("rows")), rtol=1e-5, atol=1e-5)
    rows = [row for program in _C.programs() for row in program.collectives()]
    assert [row[0] for row in rows] == ["all_reduce"]
    result = TOKENS * HIDDEN * 4
    assert wire_bytes() <= 2 * result * 3 / 4


@pytest.mark.parametrize(("dim", "summed"), [(1, True), (2, False)])
def test_experts_sharded_inside_send_no_weights(dim, summed):
    """Megatron's shardings of each expert: by inputs the result is reduced, by outputs nothing is
    sent."""
    mesh = spmd.make_mesh((4,), ("model",))
    a, b, ends = operands("rows")
    spec = [None] * 3
    spec[dim] = "model"
    a, b = a.to("spmd"), spmd.mark_sharding(b.to("spmd"), mesh, tuple(spec))
    _C.forget_programs()
    found = product(a, b, ends.to("spmd"))
    spmd.mark_sharding(found, mesh, (None, None) if summed else (None, "model"))
    spmd.sync(wait=True)
    rows = [row for program in _C.programs() for row in program.collectives()]
    assert [row[0] for row in rows] == (["all_reduce"] if summed else [])


def test_sharded_tokens_are_not_moved():
    mesh = spmd.make_mesh((3,), ("data",))
    a, b, ends = operands("rows")
    a = spmd.mark_sharding(a.to("spmd"), mesh, ("data", None))
    _C.forget_programs()
    found = product(a, b.to("spmd"), ends.to("spmd"))
    spmd.sync(wait=True)
    assert wire_bytes() == 0
    assert spmd.sharding_of(found).spec == spmd.P("data", None)
    torch.testing.assert_close(found.cpu(), product(*operands("rows")), rtol=1e-5, atol=1e-5)


def test_rows_after_the_last_group_are_zero():
    a, b, _ = operands("rows")
    ends = torch.tensor([3, 3, 5, 9], dtype=torch.int32)
    found = product(a.to("spmd"), b.to("spmd"), ends.to("spmd")).cpu()
    torch.testing.assert_close(found[:9], product(a, b, ends)[:9], rtol=1e-5, atol=1e-5)
    assert found[9:].eq(0).all()


@pytest.mark.parametrize(
    "call",
    [
        lambda a, b, ends: product(a, b, ends.long()),
        lambda a, b, ends: product(a, b, None),
        lambda a, b, ends: product(a[:, :5].contiguous(), b[:, :5], ends),
        lambda a, b, ends: product(a.double(), b.double(), ends),
        lambda a, b, ends: F.grouped_mm(a, b, offs=ends, bias=b[0, 0]),
    ],
)
def test_what_pytorch_refuses_is_refused_in_its_words(call):
    a, b, ends = operands("rows")
    with pytest.raises(RuntimeError) as eager:
        call(a, b, ends)
    with pytest.raises(RuntimeError) as ours:
        call(a.to("spmd"), b.to("spmd"), ends.to("spmd")).cpu()
    assert str(ours.value).splitlines()[0] == str(eager.value).splitlines()[0]


def test_a_mixture_of_experts_trains():
    """Routing, two grouped products and un-routing, with sharded experts, as on one device."""

    def train(device, mark=lambda *_: None):
        torch.manual_seed(1)
        up = (torch.randn(EXPERTS, WIDTH, HIDDEN) / 4).to(device).requires_grad_()
        down = (torch.randn(EXPERTS, HIDDEN, WIDTH) / 4).to(device).requires_grad_()
        gate = (torch.randn(WIDTH, EXPERTS) / 4).to(device).requires_grad_()
        for weight in (up, down):
            mark(weight)
        optimizer = torch.optim.AdamW([up, down, gate], lr=1e-2)
        losses = []
        for _ in range(3):
            x = torch.randn(TOKENS, WIDTH).to(device)
            weight, expert = (x @ gate).softmax(-1).max(-1)
            order = expert.argsort(stable=True)
            counts = torch.zeros(EXPERTS, dtype=torch.int32, device=device)
            counts = counts.index_add(0, expert, torch.ones_like(expert, dtype=torch.int32))
            ends = counts.cumsum(0, dtype=torch.int32)
            h = F.grouped_mm(x[order].contiguous(), up, offs=ends).relu()
            y = F.grouped_mm(h, down, offs=ends) * weight[order][:, None]
            loss = (y - x[order]).square().mean()
            loss.backward()
            optimizer.step()
            optimizer.zero_grad()
            losses.append(loss.item())
        return losses

    mesh = spmd.make_mesh((2, 2), ("expert", "model"))
    expected = train("cpu")
    for spec in (
        ("expert", None, None),
        (("expert", "model"), None, None),
        ("expert", None, "model"),
    ):
        found = train("spmd", lambda w, spec=spec: spmd.mark_sharding(w, mesh, spec))
        assert found == pytest.approx(expected, rel=1e-4)


def scaled(by):
    torch.manual_seed(0)
    a, b = torch.randn(16, 32).to(F8), torch.randn(48, 32).to(F8).t()
    if by == "tensor":
        return a, b, torch.tensor(0.5), torch.tensor(2.0)
    return a, b, torch.rand(16, 1) + 0.5, torch.rand(1, 48) + 0.5


@pytest.mark.parametrize("by", ["tensor", "row"])
@pytest.mark.parametrize("with_bias", [False, True])
def test_scaled_products_equal_eager_however_they_are_cut(by, with_bias):
    mesh = spmd.make_mesh((2, 2), ("x", "y"))
    a, b, scale_a, scale_b = scaled(by)
    bias = torch.randn(48).bfloat16() if with_bias else None
    expected = torch._scaled_mm(a, b, scale_a, scale_b, bias=bias, out_dtype=torch.bfloat16)
    for spec_a, spec_b in itertools.product([("x", None), (None, "x")], [("y", None), (None, "y")]):
        ours = [spmd.mark_sharding(a.to("spmd"), mesh, spec_a)]
        ours += [spmd.mark_sharding(b.t().to("spmd"), mesh, spec_b[::-1]).t()]
        ours += [scale_a.to("spmd"), scale_b.to("spmd")]
        found = torch._scaled_mm(
            *ours, bias=None if bias is None else bias.to("spmd"), out_dtype=torch.bfloat16
        )
        # Partial sums of a sharded contraction are rounded to bfloat16.
        torch.testing.assert_close(found.cpu(), expected, rtol=2**-6, atol=2**-4)


def test_weights_in_eight_bits_are_gathered_narrow():
    """A cast that widens comes after the gather, and one that narrows before it."""
    mesh = spmd.make_mesh((4,), ("data",))
    torch.manual_seed(0)
    weight, x = torch.randn(256, 256), torch.randn(1024, 256).bfloat16()
    gathered = 256 * 256 * 3 // 4
    for held, used in ((F8, torch.bfloat16), (torch.float32, torch.bfloat16)):
        w = spmd.mark_sharding(weight.to(held).to("spmd"), mesh, ("data", None))
        rows = spmd.mark_sharding(x.to("spmd"), mesh, ("data", None))
        _C.forget_programs()
        found = rows @ w.to(used)
        spmd.mark_sharding(found, mesh, ("data", None))
        spmd.sync(wait=True)
        narrow = min(torch.empty(0, dtype=held).itemsize, torch.empty(0, dtype=used).itemsize)
        assert wire_bytes() == gathered * narrow
        torch.testing.assert_close(found.cpu(), x @ weight.to(held).to(used), rtol=2e-2, atol=0.25)


SCALED = {
    "one scale": lambda w, scale: w.float() * scale[0, 0],
    "by row": lambda w, scale: w.float() * scale,
    "by row, transposed": lambda w, scale: (w.to(torch.bfloat16) * scale.bfloat16()).float().t(),
    "shifted": lambda w, scale: (w.float() - 0.5) * scale + 1,
}


@pytest.mark.parametrize("cut_scale", [False, True])
@pytest.mark.parametrize("name", SCALED)
def test_weights_that_are_scaled_before_use_are_gathered_narrow(name, cut_scale):
    mesh = spmd.make_mesh((4,), ("data",))
    torch.manual_seed(0)
    weight, x, scale = torch.randn(256, 256).to(F8), torch.randn(4096, 256), torch.rand(256, 1)
    w = spmd.mark_sharding(weight.to("spmd"), mesh, ("data", None))
    rows = spmd.mark_sharding(x.to("spmd"), mesh, ("data", None))
    scales = scale.to("spmd")
    if cut_scale:
        spmd.mark_sharding(scales, mesh, ("data", None))
    _C.forget_programs()
    found = rows @ SCALED[name](w, scales)
    spmd.mark_sharding(found, mesh, ("data", None))
    spmd.sync(wait=True)
    assert wire_bytes() <= (256 * 256 + 4 * 256) * 3 // 4
    torch.testing.assert_close(found.cpu(), x @ SCALED[name](weight, scale), rtol=1e-3, atol=1e-2)


@pytest.mark.parametrize("held", [F8, torch.bfloat16, torch.float32], ids=str)
def test_a_widened_tensor_that_is_resharded_is_gathered_narrow(held):
    mesh = spmd.make_mesh((4,), ("data",))
    w = spmd.mark_sharding(torch.ones(256, 64).to(held).to("spmd"), mesh, ("data", None))
    _C.forget_programs()
    whole = spmd.reshard(w.float(), mesh, spmd.P(None, None))
    assert torch.equal(whole.cpu(), torch.ones(256, 64))
    assert wire_bytes() == 256 * 64 * torch.empty(0, dtype=held).itemsize * 3 // 4


@pytest.mark.parametrize("form", ["rows", "contracted", "columns", "batches"])
def test_scaled_grouped_products_are_those_of_the_widened_operands(form):
    mesh = spmd.make_mesh((2,), ("x",))
    a, b, ends = operands(form)
    a, b = a.to(F8), b.transpose(-2, -1).contiguous().to(F8).transpose(-2, -1)
    groups = EXPERTS if form == "contracted" else 1
    rows = a.shape[:-1] if form != "contracted" else (groups * a.shape[0],)
    columns = (*b.shape[:-2], b.shape[-1]) if form != "contracted" else (groups * b.shape[1],)
    scale_a, scale_b = torch.rand(rows) + 0.5, torch.rand(columns) + 0.5
    if form == "contracted":
        plain = F.grouped_mm(a.float(), b.float(), offs=ends)
        by_row = scale_a.view(EXPERTS, -1, 1) * scale_b.view(EXPERTS, 1, -1)
        expected = (plain * by_row).bfloat16()
    else:
        wide_a = a.float() * scale_a[..., None]
        wide_b = b.float() * scale_b[..., None, :]
        expected = product(wide_a, wide_b, ends).bfloat16()
    for dim in range(a.dim()):
        spec = [None] * a.dim()
        spec[dim] = "x"
        found = torch._scaled_grouped_mm(
            spmd.mark_sharding(a.to("spmd"), mesh, tuple(spec)),
            b.to("spmd"),
            scale_a.to("spmd"),
            scale_b.to("spmd"),
            offs=None if ends is None else ends.to("spmd"),
            out_dtype=torch.bfloat16,
        )
        torch.testing.assert_close(found.cpu(), expected, rtol=2**-6, atol=2**-4)
