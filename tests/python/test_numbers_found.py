# SPDX-License-Identifier: Apache-2.0
"""Regression tests of wrong numbers and missing errors."""

import copy

import pytest
import torch
import torch.nn.functional as F
from torch import nn

import torch_spmd as spmd

pytestmark = pytest.mark.modes("free_moves")


@pytest.fixture
def mesh():
    return spmd.make_mesh((2, 4), ("data", "model"))


def test_concatenated_terms_with_an_empty_part(mesh):
    x = torch.arange(16.0).view(2, 8)
    d = spmd.mark_sharding(x.to("spmd"), mesh, ("data", "model"))
    assert torch.equal(d.sum(0).roll(2).cpu(), x.sum(0).roll(2))


def test_rotated_halves_of_a_product_of_cut_operands(mesh):
    torch.manual_seed(0)
    a, w = torch.randn(2, 8), torch.randn(8, 8)
    h = a @ w
    expected = torch.cat([-h[:, 4:], h[:, :4]], 1)
    a = spmd.mark_sharding(a.to("spmd"), mesh, ("data", "model"))
    w = spmd.mark_sharding(w.to("spmd"), mesh, ("data", "model"))
    h = a @ w
    torch.testing.assert_close(torch.cat([-h[:, 4:], h[:, :4]], 1).cpu(), expected)


def test_scatter_add_with_an_empty_index_tile(mesh):
    torch.manual_seed(0)
    base, source = torch.randn(10, 5), torch.randn(5, 5)
    index = torch.randint(0, 5, (5, 5))
    cut = spmd.mark_sharding(source.to("spmd"), mesh, ("data", "model"))
    result = base.to("spmd").scatter_add(1, index.repeat(2, 1)[:5].to("spmd"), cut)
    torch.testing.assert_close(result.cpu(), base.scatter_add(1, index, source))


def test_gradient_of_a_complex_linear():
    torch.manual_seed(0)
    a, w = torch.randn(4, 6, dtype=torch.complex64), torch.randn(3, 6, dtype=torch.complex64)
    out = torch.randn(4, 3, dtype=torch.complex64)
    gradients = []
    for device in ("cpu", "spmd"):
        # Copies, because a host tensor moved to its own device is itself.
        x, y = (t.clone().to(device).requires_grad_() for t in (a, w))
        F.linear(x, y).backward(out.to(device))
        gradients.append((x.grad.cpu(), y.grad.cpu()))
    torch.testing.assert_close(gradients[1], gradients[0])


@pytest.mark.parametrize("cut", [False, True])
def test_targets_outside_the_classes(mesh, cut):
    logits = torch.zeros(4, 8).to("spmd")
    if cut:
        spmd.mark_sharding(logits, mesh, (None, "model"))
    with pytest.raises(IndexError, match="Target 9 is out of bounds"):
        F.cross_entropy(logits, torch.tensor([0, 9, 1, 2]).to("spmd")).item()


@pytest.mark.parametrize("keep_loss", [False, True])
def test_rows_outside_an_embedding(keep_loss):
    table = nn.Embedding(4, 4).to("spmd")
    optimizer = torch.optim.SGD(table.parameters(), 0.1)
    before = table.weight.detach().cpu()
    with pytest.raises(IndexError, match="index 9 is out of range"):
        loss = table(torch.tensor([1, 9]).to("spmd")).sum()
        loss.backward()
        if not keep_loss:
            del loss
        optimizer.step()
        spmd.sync(wait=True)
    assert torch.equal(table.weight.detach().cpu(), before)


def test_complex_random_numbers_have_two_parts():
    x = torch.randn(4000, device="spmd", dtype=torch.complex64).cpu()
    assert abs(x.real.std() - 0.5**0.5) < 0.05 and abs(x.imag.std() - 0.5**0.5) < 0.05
    y = torch.rand(4000, device="spmd", dtype=torch.complex64).cpu()
    assert abs(y.real.mean() - 0.5) < 0.05 and abs(y.imag.mean() - 0.5) < 0.05


def test_complex_variance_along_a_cut_dimension(mesh):
    torch.manual_seed(0)
    c = torch.randn(4, 6, dtype=torch.complex64)
    d = spmd.mark_sharding(c.to("spmd"), mesh, (None, "data"))
    torch.testing.assert_close(d.var(1).cpu(), c.var(1))
    torch.testing.assert_close(d.std(1).cpu(), c.std(1))


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
@pytest.mark.parametrize("make", [lambda: nn.LayerNorm(8), lambda: nn.BatchNorm1d(8)])
def test_norms_in_half_precision(make, dtype):
    torch.manual_seed(0)
    x = torch.randn(4, 8).to(dtype)
    norm = make().to(dtype)
    other = copy.deepcopy(norm).to("spmd")
    a, b = x.clone().requires_grad_(), x.to("spmd").requires_grad_()
    expected, result = norm(a), other(b)
    torch.testing.assert_close(result.cpu(), expected)
    expected.float().square().sum().backward()
    result.float().square().sum().backward()
    torch.testing.assert_close(b.grad.cpu(), a.grad, atol=2e-2, rtol=2e-2)


def test_group_norm_of_a_permuted_input(mesh):
    torch.manual_seed(0)
    x, w, b = torch.randn(3, 2, 6), torch.randn(6), torch.randn(6)
    d = spmd.mark_sharding(x.to("spmd"), mesh, ("data", None, None))
    result = F.group_norm(d.permute(1, 2, 0), 2, w.to("spmd"), b.to("spmd"))
    torch.testing.assert_close(result.cpu(), F.group_norm(x.permute(1, 2, 0), 2, w, b))


def test_a_deep_copy_keeps_the_mark(mesh):
    layer = nn.Linear(8, 8).to("spmd")
    spmd.mark_sharding(layer.weight, mesh, ("model", None))
    sharding = spmd.sharding_of(copy.deepcopy(layer).weight)
    assert sharding.is_committed and sharding.spec == spmd.P("model", None)
    assert not spmd.sharding_of(copy.deepcopy(layer).bias).is_committed


def test_a_reshape_of_all_that_is_stored_is_marked(mesh):
    flat = torch.arange(32.0).to("spmd")
    x = flat.view(8, 4)
    spmd.mark_sharding(x, mesh, ("data", "model"))
    assert spmd.sharding_of(x).spec == spmd.P("data", "model")
    assert torch.equal((x * 2).cpu(), torch.arange(32.0).view(8, 4) * 2)
    assert torch.equal(flat.cpu(), torch.arange(32.0))
    x.add_(1)
    assert torch.equal(flat.cpu(), torch.arange(32.0) + 1)


def test_nothing_is_claimed_about_a_view_that_no_spec_describes(mesh):
    x = torch.arange(64.0).to("spmd")
    spmd.mark_sharding(x, mesh, ("data",))
    assert not spmd.sharding_of(x.view(8, 8)).is_committed


def test_results_are_not_written_to_another_device():
    ours = torch.ones(4, device="spmd")
    with pytest.raises(RuntimeError, match="same device"):
        torch.ones(4).add_(ours)
    with pytest.raises(RuntimeError, match="same device"):
        torch.add(ours, ours, out=torch.zeros(4))


def test_dlpack_is_refused_by_name():
    with pytest.raises(BufferError, match="host copy"):
        torch.from_dlpack(torch.ones(2, device="spmd"))


def test_slice_writes_of_terms():
    mesh = spmd.make_mesh((2, 2), ("x", "y"))
    g = torch.zeros(4, 1).to("spmd")
    p = spmd.mark_sharding(torch.ones(4, 2).to("spmd"), mesh, ("x", None))
    w = spmd.mark_sharding(torch.ones(2, 1).to("spmd"), mesh, ("y", None))
    g[:2] = p[:2] @ w
    g[2:] = p[2:] @ w
    assert g.cpu().flatten().tolist() == [2, 2, 2, 2]


def test_gradient_of_scatter_reduce_where_rows_are_not_indexed():
    mesh = spmd.make_mesh((2, 2), ("x", "y"))
    index = torch.zeros(2, 2, dtype=torch.long).to("spmd")
    spmd.mark_sharding(index, mesh, ("x", "y"))
    x = torch.ones(4, 2).to("spmd").requires_grad_()
    x.scatter_reduce(1, index, torch.full((2, 2), 2.0).to("spmd"), "amin").sum().backward()
    assert torch.equal(x.grad.cpu(), torch.ones(4, 2))


def test_convolution_backward_where_a_device_has_no_row():
    mesh = spmd.make_mesh((3,), ("x",))
    torch.manual_seed(0)
    x, w = torch.randn(1, 1, 6, 3), torch.randn(1, 1, 3, 3)
    gradients = []
    for device in ("cpu", "spmd"):
        a, b = (t.clone().to(device).requires_grad_() for t in (x, w))
        if device == "spmd":
            spmd.mark_sharding(a, mesh, (None, None, "x", None))
        F.conv2d(a, b, stride=(3, 1)).sum().backward()
        gradients.append((a.grad.cpu(), b.grad.cpu()))
    torch.testing.assert_close(gradients[1], gradients[0])


def test_layer_norm_statistics_that_an_earlier_program_made(mesh):
    torch.manual_seed(1)
    host = [torch.randn(*size) for size in ((4, 6, 5), (5,), (5,), (4, 6, 5))]

    def gradient(device):
        x, w, b, g = (t.to(device) for t in host)
        x.requires_grad_()
        y = F.layer_norm(x, (5,), w, b)
        if device == "spmd":
            spmd.sync()  # the rest is another program
            spmd.mark_sharding(g, mesh, (None, "data", None))
        return torch.autograd.grad(y, x, g)[0].cpu()

    torch.testing.assert_close(gradient("spmd"), gradient("cpu"))


def test_packed_sequences(mesh):
    torch.manual_seed(0)
    lengths = torch.tensor([5, 4, 2])
    net = nn.LSTM(4, 6, batch_first=True)

    def run(device):
        lstm = copy.deepcopy(net).to(device)
        x = torch.arange(60.0).reshape(3, 5, 4).div(60).to(device).requires_grad_()
        if device == "spmd":
            spmd.mark_sharding(lstm.weight_ih_l0, mesh, ("model", None))
            spmd.mark_sharding(x, mesh, (None, "data", None))
        packed = nn.utils.rnn.pack_padded_sequence(x, lengths, batch_first=True)
        out, _ = nn.utils.rnn.pad_packed_sequence(lstm(packed)[0], batch_first=True)
        out.square().sum().backward()
        return [t.detach().cpu() for t in (out, x.grad, *(p.grad for p in lstm.parameters()))]

    torch.testing.assert_close(run("spmd"), run("cpu"))


def test_a_mean_of_integers_takes_the_sum_not_its_terms():
    mesh = spmd.make_mesh((4,), ("x",))
    a, b = torch.arange(24).view(1, 4, 6), torch.arange(6 * 8).view(6, 8) % 7
    x = spmd.mark_sharding(a.to("spmd"), mesh, (None, None, "x"))
    w = spmd.mark_sharding(b.to("spmd"), mesh, ("x", None))
    pooled = torch.nn.functional.avg_pool2d(x @ w, 3, stride=1)
    assert torch.equal(pooled.cpu(), torch.nn.functional.avg_pool2d(a @ b, 3, stride=1))


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
def test_products_by_index_in_tiles_of_one_row(dtype):
    values = torch.arange(1, 11, dtype=dtype).view(5, 2) / 4
    index = torch.tensor([1, 0, 1])
    factors = torch.tensor([[2.0, 0.5, 1.5]] * 5, dtype=dtype)
    x = spmd.mark_sharding(values.to("spmd"), spmd.make_mesh((4,), ("x",)), ("x", None))
    got = x.index_reduce(1, index.to("spmd"), factors.to("spmd"), "prod")
    assert torch.equal(got.cpu(), values.index_reduce(1, index, factors, "prod"))


def test_masked_scatter_gives_rows_in_order():
    t = torch.arange(18.0).view(3, 6).t()
    d = t.to("spmd")
    want = t.masked_scatter(t > 3, -t.flatten())
    got = d.masked_scatter(d > 3, -d.flatten())
    assert got.stride() == want.stride()
    assert torch.equal(got.cpu(), want)


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
