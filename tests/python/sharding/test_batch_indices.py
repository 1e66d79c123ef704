# SPDX-License-Identifier: Apache-2.0
"""Indices that number the batch (`x[torch.arange(B), last]`) leave it sharded."""

import pytest
import torch

import torch_spmd as spmd

B, N, D = 8, 10, 6


def rows(x, p):
    return x[torch.arange(B, device=x.device)[:, None], p]


def expanded(x, p):
    numbers = torch.arange(B, device=x.device).view(B, 1).expand(B, p.shape[1])
    return x[numbers.int(), p]


def one_each(x, p):
    return x[torch.arange(B, device=x.device), p[:, 0]]


def from_the_end(x, p):
    return x[torch.arange(B, device=x.device), -1 - p[:, 0]]


def behind(x, p):
    return x.permute(2, 0, 1)[:, torch.arange(B, device=x.device)[:, None], p]


def parted(x, p):
    """With kept dimensions between the indices, the indexed ones come first."""
    return x.transpose(1, 2)[torch.arange(B, device=x.device)[:, None], :, p]


def two_others(x, p):
    return x[torch.arange(B, device=x.device)[:, None], p, p % D]


def mapped(x, p):
    return torch.vmap(lambda x, p: x[p])(x, p)


def mapped_twice(x, p):
    return torch.vmap(lambda x, p: torch.vmap(lambda q: x[q])(p))(x, p)


def taken(x, p):
    return torch.take_along_dim(x, p[:, :, None], dim=1)


def of_likelihoods(x, p):
    return x[:, :, 0].log_softmax(1)[torch.arange(B, device=x.device), p[:, 0]]


def put(x, p):
    y = x * 1
    y[torch.arange(B, device=x.device), p[:, 0]] = x[:, 0] * 2
    return y


def added(x, p):
    numbers = torch.arange(B, device=x.device)[:, None]
    return (x * 1).index_put((numbers, p), x[:, : p.shape[1]] * 3, accumulate=True)


CASES = [
    rows, expanded, one_each, from_the_end, behind, parted, two_others, mapped, mapped_twice,
    taken, of_likelihoods, put, added,
]  # fmt: skip


def drawn():
    torch.manual_seed(0)
    x = torch.randn(B, N, D)
    p = torch.stack([torch.randperm(N)[:4] for _ in range(B)])
    return x, p


def run(case, x, p):
    x = x.detach().requires_grad_()
    out = case(x, p)
    (out.square() * torch.arange(out.numel(), device=x.device).view(out.shape)).sum().backward()
    return out.detach(), x.grad


@pytest.mark.parametrize("devices", [1, 2, 3])
@pytest.mark.parametrize("case", CASES, ids=lambda case: case.__name__)
def test_reads_and_writes_of_a_cut_batch_send_nothing(case, devices):
    x, p = drawn()
    want = run(case, x, p)
    mesh = spmd.make_mesh((devices,), ("data",))
    x, p = x.to("spmd"), p.to("spmd")
    spmd.mark_sharding((x, p), mesh, [("data", None, None), ("data", None)])
    got = run(case, x, p)
    spmd.sync()
    assert spmd.debug.collectives().rows == []
    for ours, theirs in zip(got, want):
        torch.testing.assert_close(ours.cpu(), theirs)


@pytest.mark.parametrize("case", CASES, ids=lambda case: case.__name__)
def test_a_backward_pass_in_a_program_of_its_own_sends_nothing(case):
    """The loss is read before, so the numbers of the rows come from an earlier program."""
    x, p = drawn()
    want = run(case, x, p)
    mesh = spmd.make_mesh((2,), ("data",))
    x, p = x.to("spmd"), p.to("spmd")
    spmd.mark_sharding((x, p), mesh, [("data", None, None), ("data", None)])
    x.requires_grad_()
    for _ in range(3):  # the third is replayed
        x.grad = None
        out = case(x, p)
        weight = torch.arange(out.numel(), device=x.device).view(out.shape)
        loss = (out.square() * weight).sum()
        torch.testing.assert_close(out.detach().cpu(), want[0])
        loss.backward()
        spmd.sync()
        rows = spmd.debug.collectives().rows
        assert [row for row in rows if row.bytes > 4] == []  # the loss itself may be reduced
        torch.testing.assert_close(x.grad.cpu(), want[1])


def test_numbers_that_were_overwritten_number_nothing():
    x, p = drawn()
    numbers = torch.arange(B, device="spmd")
    spmd.sync()
    for k in range(3):
        numbers.copy_(torch.arange(B).roll(k))
        got = x.to("spmd")[numbers, p[:, 0].to("spmd")]
        torch.testing.assert_close(got.cpu(), x[torch.arange(B).roll(k), p[:, 0]])
        spmd.sync()
    counted = torch.arange(0, 3 * B, 3, device="spmd")
    spmd.sync()
    counted += 1
    assert counted.tolist() == list(range(1, 3 * B, 3))


def test_a_batch_that_is_numbered_in_part():
    x, p = drawn()
    read = lambda x, p: x[torch.arange(4, device=x.device), p[:4, 0]]  # noqa: E731
    mesh = spmd.make_mesh((2,), ("data",))
    on_device = spmd.mark_sharding(x.to("spmd"), mesh, ("data", None, None))
    torch.testing.assert_close(read(on_device, p.to("spmd")).cpu(), read(x, p))


@pytest.mark.parametrize("start", [1, -2])
def test_numbers_that_do_not_begin_at_zero(start):
    x, p = drawn()

    def read(x, p):
        return x[torch.arange(start, start + 4, device=x.device)[:, None], p[:4]]

    mesh = spmd.make_mesh((2,), ("data",))
    on_device = spmd.mark_sharding(x.to("spmd"), mesh, ("data", None, None))
    torch.testing.assert_close(read(on_device, p.to("spmd")).cpu(), read(x, p))


def test_an_index_out_of_range_is_named():
    mesh = spmd.make_mesh((2,), ("data",))
    x = spmd.mark_sharding(torch.randn(B, N, device="spmd"), mesh, ("data", None))
    p = torch.full((B,), N, device="spmd")
    with pytest.raises(IndexError, match="index 10 is out of bounds for dimension 1 with size 10"):
        x[torch.arange(B, device="spmd"), p].cpu()
