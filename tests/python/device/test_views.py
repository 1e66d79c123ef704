# SPDX-License-Identifier: Apache-2.0
"""Views, writes and kernels that were wrong once, found by random programs and PyTorch's
samples."""

import warnings

import pytest
import torch
import torch.nn.functional as F
from reported import reported

import torch_spmd as spmd

pytestmark = pytest.mark.modes("coalesced", "in_turns")

DEVICES = ["cpu", "spmd"]


def mesh(*shape):
    return spmd.make_mesh(shape, ("x", "y")[: len(shape)])


def test_index_add_to_partial_sums():
    x = torch.ones(6, 3)
    t = spmd.mark_sharding(x.to("spmd"), mesh(2), ("x", None))
    index = torch.tensor([0, 2])
    got = (t.mT @ t).index_add(0, index.to("spmd"), torch.ones(2, 3, device="spmd")) * 1
    assert torch.equal(got.cpu(), (x.mT @ x).index_add(0, index, torch.ones(2, 3)))


@pytest.mark.parametrize("device", DEVICES)
def test_linear_takes_a_vector_as_its_weight(device):
    x = torch.arange(6.0, device=device).view(2, 3).requires_grad_()
    w = torch.ones(3, device=device, requires_grad=True)
    out = F.linear(x, w)
    out.sum().backward()
    assert out.tolist() == [3.0, 12.0]
    assert w.grad.tolist() == [3.0, 5.0, 7.0]


@pytest.mark.parametrize("device", DEVICES)
def test_linear_has_tangents_and_complex_second_gradients(device):
    x, w = torch.ones(2, 3, device=device), torch.full((4, 3), 2.0, device=device)
    _, tangent = torch.func.jvp(lambda t: F.linear(t, w), (x,), (x,))
    assert tangent.tolist() == [[6.0] * 4] * 2
    x, w = ((t * (1 + 1j)).requires_grad_() for t in (x, w))
    (g,) = torch.autograd.grad(F.linear(x, w).abs().sum(), x, create_graph=True)
    (second,) = torch.autograd.grad(g.abs().sum(), w)
    assert second.shape == w.shape


@pytest.mark.parametrize("device", DEVICES)
def test_writes_through_unfold_and_expanded_tensors(device):
    x = torch.zeros(6, device=device)
    x.unfold(0, 2, 3).add_(1)
    assert x.tolist() == [1.0, 1.0, 0.0, 1.0, 1.0, 0.0]
    x.unfold(0, 4, 1).zero_()
    assert x.tolist() == [0.0] * 6
    one = torch.ones((), device=device)
    one.expand(3).fill_(2)
    assert one.tolist() == 2.0
    one.expand(2)[1:].mul_(2)
    assert one.tolist() == 4.0
    rows = torch.arange(-3.0, 3, device=device).view(6, 1)
    rows.expand(3, 6, 1).split(1)[0].relu_()
    assert rows.flatten().tolist() == [0.0, 0.0, 0.0, 0.0, 1.0, 2.0]
    with pytest.raises(RuntimeError, match="more than one element of the written-to tensor"):
        one.expand(3).add_(1)


@pytest.mark.parametrize("device", DEVICES)
@pytest.mark.parametrize("scale", [1, 2])  # windows of data, and of what the program computes
def test_writes_into_a_copy_of_windows(device, scale):
    windows = (torch.arange(4.0, device=device) * scale).unfold(0, 2, 1)
    copies = [windows.clone() for _ in range(3)]
    copies[0][0] = 9
    copies[1][:1].fill_(9)
    copies[2].diagonal().zero_()
    assert (
        copies[0].tolist()
        == copies[1].tolist()
        == [[9, 9], [scale, 2 * scale], windows[2].tolist()]
    )
    assert copies[2].tolist() == [[0, scale], [scale, 0], windows[2].tolist()]


@pytest.mark.parametrize("device", DEVICES)
def test_writes_that_overlap_what_they_read_in_part_are_refused(device):
    x = torch.ones(4, 3, device=device)
    with pytest.raises(RuntimeError, match="some elements of the input tensor and the written-to"):
        x[:2].add_(x[1:3])
    with pytest.raises(RuntimeError, match="some elements of the input tensor and the written-to"):
        x.copy_(x[:1])
    x[:2].add_(x[2:])
    x.add_(x)
    assert x.tolist() == [[4.0] * 3] * 2 + [[2.0] * 3] * 2


@pytest.mark.parametrize("device", DEVICES)
def test_a_view_that_strides_do_not_allow_is_refused(device):
    x = torch.arange(24.0, device=device).view(8, 3)[:, 1:]
    with pytest.raises(RuntimeError, match="view size is not compatible"):
        x.view(-1)
    assert x.reshape(-1).shape == (16,)


@pytest.mark.parametrize("device", DEVICES)
def test_gradients_of_an_empty_leaf_add_up(device):
    x = torch.zeros(0, 6, device=device, requires_grad=True)
    x.view(-1).sum().backward()
    x.sum().backward()
    assert x.grad.shape == (0, 6)


@pytest.mark.parametrize("device", DEVICES)
def test_a_broadcast_write_through_another_type(device):
    x = torch.zeros(3, 4, device=device)
    if device == "spmd":
        spmd.mark_sharding(x, mesh(4), (None, "x"))
    x.chunk(3)[0].view(torch.complex64).copy_(torch.ones((), device=device))
    assert x[0].tolist() == [1.0, 0.0, 1.0, 0.0]


def test_logsumexp_of_nothing_and_of_complex_numbers():
    nothing = spmd.mark_sharding(torch.ones(3, 0, device="spmd"), mesh(2), (None, "x"))
    assert nothing.logsumexp(-1).tolist() == [-torch.inf] * 3
    z = torch.complex(torch.arange(10.0), torch.ones(10)).view(5, 2) / 10
    t = spmd.mark_sharding(z.to("spmd"), mesh(2), ("x", None))
    torch.testing.assert_close(t.logsumexp(0).cpu(), z.logsumexp(0))


def test_attention_in_double_precision_keeps_it():
    torch.manual_seed(0)
    host = [torch.randn(4, 4, n, 8, dtype=torch.float64) * 4 for n in (3, 6, 6)]

    def gradients(tensors):
        out = F.scaled_dot_product_attention(*tensors, is_causal=True)
        return torch.autograd.grad(out, tensors, torch.ones_like(out))

    cut = [t.to("spmd").requires_grad_() for t in host]
    spmd.mark_sharding(cut[0], mesh(2), (None, None, "x", None))
    for got, want in zip(gradients(cut), gradients([t.requires_grad_() for t in host])):
        torch.testing.assert_close(got.cpu(), want, rtol=1e-10, atol=1e-11)


@pytest.mark.parametrize("device", DEVICES)
def test_factories_of_integer_types(device):
    def empty():
        return torch.empty(4, dtype=torch.int64, device=device)

    assert torch.arange(0, 8, 2.5, dtype=torch.int64, device=device).tolist() == [0, 2, 4, 6]
    assert torch.linspace(-3, 3, 4, out=empty()).tolist() == [-3, -1, 1, 3]
    assert torch.ones(4, out=empty()).tolist() == [1] * 4


@pytest.mark.parametrize("device", DEVICES)
def test_losses_of_one_sample(device):
    x = torch.tensor([0.1, 0.2], device=device)
    loss = F.multi_margin_loss(x, torch.tensor(1, device=device), reduction="none")
    torch.testing.assert_close(loss.cpu(), torch.tensor(0.45))


@pytest.mark.parametrize("device", DEVICES)
def test_statistics_of_half_precision_batches(device):
    x = torch.linspace(-1, 1, 125).view(5, 5, 5).bfloat16().to(device)
    ones = torch.ones(5, dtype=torch.bfloat16, device=device)
    results = torch.ops.aten._batch_norm_with_update(x, ones, ones, ones * 0, ones, 0.5, 0.6)
    assert results[1].cpu().dtype == torch.bfloat16


def test_fused_adam_corrects_its_bias_in_double_precision():
    def first_step(device):
        p = torch.nn.Parameter(torch.ones(1, dtype=torch.float64, device=device))
        optimizer = torch.optim.Adam([p], fused=True)
        p.grad = torch.full((1,), 0.3, dtype=torch.float64, device=device)
        optimizer.step()
        return p.item()

    assert first_step("spmd") == pytest.approx(first_step("cpu"), abs=1e-14)


def test_random_permutations_come_from_the_device():
    state, host = torch.spmd.get_rng_state(), torch.get_rng_state()
    first = torch.randperm(6, device="spmd").cpu()
    torch.spmd.set_rng_state(state)
    assert torch.equal(first, torch.randperm(6, device="spmd").cpu())
    assert torch.equal(host, torch.get_rng_state())


def test_an_index_of_integers_is_recorded_and_not_run_on_the_host():
    x = torch.arange(12.0).view(6, 2).to("spmd")
    before = reported()["host_fallbacks"]
    got = x[torch.tensor([5, 0]).to("spmd")]
    assert reported()["host_fallbacks"] == before
    assert got.tolist() == [[10.0, 11.0], [0.0, 1.0]]


@pytest.mark.parametrize("device", DEVICES)
def test_tangents_of_a_part_of_a_storage(device):
    x = torch.arange(4.0, device=device)[:3]
    _, tangent = torch.func.jvp(lambda t: t[:1] + t, (x,), (torch.ones_like(x),))
    assert tangent.tolist() == [2.0] * 3


@pytest.mark.parametrize("device", DEVICES)
def test_linear_refuses_a_weight_of_three_dimensions(device):
    x = torch.ones(2, 4, 4, device=device)
    with pytest.raises(RuntimeError, match="expects a tensor with <= 2 dimensions"):
        F.linear(x, x)


@pytest.mark.filterwarnings("ignore:Use of index_put_ on expanded tensors")
@pytest.mark.parametrize("device", DEVICES)
def test_an_indexed_write_of_an_expanded_tensor_writes_what_is_stored(device):
    stored = torch.arange(6.0).to(device)
    rows = stored[1:4].expand(2, 3)
    rows[torch.tensor([1, 0]).to(device), torch.tensor([0, 2]).to(device)] = 9.0
    assert stored.tolist() == [0, 9, 2, 9, 4, 5]
    rows.index_put_((torch.tensor([0, 1]).to(device),), rows[0] * 0 + 1, accumulate=True)
    assert stored.tolist() == [0, 11, 4, 11, 4, 5]
    assert rows.tolist() == [[11, 4, 11]] * 2


@pytest.mark.parametrize("write", ["relu_", "tanh_", "sigmoid_"])
@pytest.mark.parametrize("device", DEVICES)
def test_a_write_into_a_view_is_differentiated_twice(device, write):
    x = torch.linspace(-1, 2, 4).to(device).requires_grad_()
    t = x.clone()
    getattr(t.view(-1), write)()
    (g,) = torch.autograd.grad(t.square().sum(), x, create_graph=True)
    (twice,) = torch.autograd.grad(g.square().sum(), x)
    want = x.detach().cpu().requires_grad_()
    (g,) = torch.autograd.grad(getattr(want, write[:-1])().square().sum(), want, create_graph=True)
    torch.testing.assert_close(twice.cpu(), torch.autograd.grad(g.square().sum(), want)[0])


def test_the_mean_of_a_product_of_what_was_written_through_a_view():
    t = torch.arange(4.0).to("spmd")
    t.view(1, 2, 2, 1).add_(2)
    assert torch.outer(t, t).mean().item() == 12.25


TURNED = {
    "select": lambda t: t.select(0, 1).copy_(t.select(0, 1).t().clone()),
    "select, last": lambda t: t.select(2, 1).copy_(t.select(2, 1).t().clone()),
    "narrow": lambda t: t.narrow(2, 0, 2).copy_(t.narrow(2, 0, 2).transpose(0, 1).clone()),
    "every second": lambda t: t[::2].copy_(t[::2].mT.contiguous()),
    "nested": lambda t: t[1:][0].copy_(t[1:][0].t().clone()),
    "flipped": lambda t: t[0:4].copy_(t[0:4].flip(0)),
    "moved": lambda t: t[0:4].copy_(t[1:5].clone()),
}


@pytest.mark.parametrize("cut", [False, True])
@pytest.mark.parametrize("write", TURNED)
def test_a_part_that_is_written_from_itself(write, cut):
    """A part with another order of elements is not written back over elements that are still to be
    read."""
    want = torch.arange(216.0).view(6, 6, 6)
    mine = want.clone().to("spmd")
    if cut:
        spmd.mark_sharding(mine, spmd.make_mesh((2,), ("a",)), (None, None, "a"))
    for _ in range(2):
        mine.cpu()
        TURNED[write](mine)
        TURNED[write](want)
    torch.testing.assert_close(mine.cpu(), want)


@pytest.mark.parametrize("device", DEVICES)
def test_a_storage_copied_to_itself_stays(device):
    x = torch.arange(6.0, device=device)
    for _ in range(2):
        x.untyped_storage().copy_(x.untyped_storage())
        x.mul_(2)
    assert x.tolist() == [0.0, 4.0, 8.0, 12.0, 16.0, 20.0]


def test_a_storage_with_a_new_form_forgets_its_settled_layout():
    """Bytes of a vector in the storage of a matrix whose rows are on two devices."""
    x = torch.arange(24.0).view(4, 6).to("spmd")
    x.mul_(spmd.mark_sharding(torch.ones(4, 6).to("spmd"), mesh(2), ("x", None)))
    spmd.sync(wait=True)
    for scale in (1, 2):
        y = torch.arange(24.0).to("spmd") * scale
        x.untyped_storage().copy_(y.untyped_storage())
        spmd.sync(wait=True)
        assert (x.sum() + x.view(24)).tolist() == [scale * (276.0 + k) for k in range(24)]


@pytest.mark.parametrize("pending", [False, True])
@pytest.mark.parametrize("sizes", [(0,), (3,), (2, 3), (7,)])
def test_out_that_takes_another_size(sizes, pending):
    y, x = torch.ones(2, 3).to("spmd") * 2, torch.ones(sizes).to("spmd") * 3
    if not pending:
        spmd.sync(wait=True)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        torch.add(y, y, out=x)
    assert x.tolist() == [[4.0] * 3] * 2


@pytest.mark.parametrize("pending", [False, True])
@pytest.mark.parametrize("device", DEVICES)
def test_storages_grow_and_shrink(device, pending):
    """Remaining elements keep their values, and other tensors of the storage see them."""
    x = torch.arange(6.0, device=device) * 2
    view = x.view(2, 3).t()
    seen = []
    for size in (12, 4, 9, 6):
        if device == "spmd" and not pending:
            spmd.sync(wait=True)
        x.untyped_storage().resize_(size * 4)
        x.resize_(size)
        x[4:].fill_(size)
        seen += [x.tolist(), (x + 1).tolist()]
    flags = torch.arange(6, device=device) > 2
    flags.resize_(9)[6:].fill_(True)
    assert view.tolist() == [[0.0, 6.0], [2.0, 6.0], [4.0, 6.0]]
    assert flags.tolist() == [False] * 3 + [True] * 6
    kept = [0.0, 2.0, 4.0, 6.0]
    want = [kept + [float(size)] * (size - 4) for size in (12, 4, 9, 6)]
    assert seen == [v for w in want for v in (w, [e + 1 for e in w])]
