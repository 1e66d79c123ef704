# SPDX-License-Identifier: Apache-2.0
"""Rows that are taken out of a sharded dimension by a list of indices, and written back by it."""

import pytest
import torch
from torch.nn import functional as F

import torch_spmd as spmd
from torch_spmd.device import options

N, D, H = 32, 64, 96

# Unsorted, with duplicates and with negative indices; no two devices have as many of them.
LISTS = [
    [3, 17, 30, 31, 4, 2, 9, 8, 29],
    [0, 0, 5, -1, 5, -32, 12],
    [11, 10, 25, 7, 1, 23, 22, 24, 26, 27, 28],
]


def gated(h, w, v):
    gate, up = F.linear(h, w).chunk(2, dim=-1)
    return F.linear(F.silu(gate) * up, v)


def of_zero_not_zero(h, w, v):
    """Rows that a device does not have become anything: infinite, and not a number."""
    a = F.linear(1 / h, w)[:, : w.shape[0] // 2].sigmoid()
    return F.linear(F.layer_norm(a, a.shape[1:]) - a.abs().log(), v).softmax(-1)


def in_heads(h, w, v):
    a = F.linear(h, w).view(len(h), 4, -1)
    a = torch.cat([a[:, :, : a.shape[2] // 4].exp(), a[:, :, 3 * a.shape[2] // 4 :].cos()], dim=2)
    return F.linear(a.transpose(1, 2).reshape(len(h), -1), v)


def read(x, i):
    return x[i]


def selected(x, i):
    return x.index_select(0, i)


def add(out, i, y):
    return out.index_add(0, i, y, alpha=2)


def accumulate(out, i, y):
    return out.index_put((i,), y, accumulate=True)


CASES = {
    "gated": (read, gated, accumulate),
    "of_zero": (read, of_zero_not_zero, accumulate),
    "in_heads": (selected, in_heads, add),
    "selected": (selected, gated, add),
}


def drawn(experts=3):
    g = torch.Generator().manual_seed(0)
    x = torch.rand(N, D, generator=g) + 0.1
    p = torch.rand(N, 2, generator=g)
    weights = [
        torch.randn(size, generator=g) * 0.1
        for _ in range(experts)
        for size in ((2 * H, D), (D, H))
    ]
    lists = [torch.tensor(list_) for list_ in LISTS[:experts]]
    return x, p, weights, lists


def loop(case, x, p, weights, lists):
    """Experts that take their tokens out of x and add what they make of them to a result."""
    read_rows, make, write_rows = CASES[case]
    out = x * 0
    for k, i in enumerate(lists):
        if read_rows is selected:
            i = i % N  # which takes no negative ones
        y = make(read_rows(x, i), *weights[2 * k : 2 * k + 2])
        out = write_rows(out, i, y * p[i, i % 2, None])
    return out


def gradients(case, x, p, weights, lists):
    leaves = [t.detach().requires_grad_() for t in (x, p, *weights)]
    out = loop(case, leaves[0], leaves[1], leaves[2:], lists)
    (out.square().sum() / out.numel()).backward()
    return [out.detach(), *(t.grad for t in leaves)]


def placed(mesh, x, p, weights, lists, specs=((None, None), (None, None))):
    x, p, weights, lists = (
        torch.utils._pytree.tree_map(lambda t: t.to("spmd"), a) for a in (x, p, weights, lists)
    )
    spmd.mark_sharding((x, p), mesh, [("data", None)] * 2)
    for k, w in enumerate(weights):
        spmd.mark_sharding(w, mesh, specs[k % 2])
    return x, p, weights, lists


@pytest.mark.parametrize("verify", [False, True])
@pytest.mark.parametrize("devices", [2, 4])
@pytest.mark.parametrize("case", CASES)
def test_a_loop_of_experts(case, devices, verify):
    given = drawn()
    want = gradients(case, *given)
    mesh = spmd.make_mesh((devices,), ("data",))
    with options.update(verify=verify):
        got = gradients(case, *placed(mesh, *given))
        spmd.sync()
    for ours, theirs in zip(got, want):
        torch.testing.assert_close(ours.cpu(), theirs, rtol=1e-4, atol=1e-6)


def test_a_loop_of_sharded_experts():
    """Tensor parallelism within an expert: partial sums of its rows along the other axis."""
    given = drawn()
    want = gradients("gated", *given)
    mesh = spmd.make_mesh((2, 2), ("data", "model"))
    # The features of a gate and what it gates are on the same device.
    specs = ((spmd.blocks(2, "model"), None), (None, "model"))
    got = gradients("gated", *placed(mesh, *given, specs))
    for ours, theirs in zip(got, want):
        torch.testing.assert_close(ours.cpu(), theirs, rtol=1e-4, atol=1e-6)


def penalty(case, x, p, weights, lists):
    """Gradients of a gradient."""
    leaves = [t.detach().requires_grad_() for t in (x, p, *weights)]
    out = loop(case, leaves[0], leaves[1], leaves[2:], lists)
    first = torch.autograd.grad(out.square().sum(), leaves[:2], create_graph=True)
    sum((g / g.numel()).square().sum() for g in first).backward()
    return [t.grad for t in leaves]


@pytest.mark.parametrize("case", ["gated", "selected"])
def test_second_derivatives(case):
    given = drawn(2)
    want = penalty(case, *given)
    got = penalty(case, *placed(spmd.make_mesh((4,), ("data",)), *given))
    for ours, theirs in zip(got, want):
        torch.testing.assert_close(ours.cpu(), theirs, rtol=1e-4, atol=1e-6)


def second_dimension(x, i, w):
    """x is [D, N]; the rows are its columns."""
    h = x[:, i]
    return torch.zeros_like(x).index_add(1, i, (h.sigmoid().T @ w).tanh().T.repeat(50, 1))


def overwritten(x, i, w):
    """Distinct places are written, not added to."""
    x = x.clone()
    x[:, i] = (x[:, i].exp().T @ w).sin().T.repeat(50, 1)
    return x


def also_read(x, i, w):
    """Something needs the rows as they are."""
    h = (x[:, i].sigmoid().T @ w).tanh()
    return torch.zeros_like(x).index_add(1, i, h.T.repeat(50, 1)) + h.sum()


def in_order(x, i, w):
    """Rows meet their neighbours, which may belong to other devices."""
    h = (x[:, i].sigmoid().T @ w).cumsum(0).tanh()
    return torch.zeros_like(x).index_add(1, i, h.T.repeat(50, 1))


def by_another_list(x, i, w):
    """Rows are read by one list and written by another."""
    h = (x[:, i].sigmoid().T @ w).tanh()
    return torch.zeros_like(x).index_add(1, i.flip(0), h.T.repeat(50, 1))


OTHERS = [second_dimension, overwritten, also_read, in_order, by_another_list]


@pytest.mark.parametrize("dtype", [torch.float64, torch.bfloat16])
@pytest.mark.parametrize("size", [64, 62], ids=["even", "uneven"])
@pytest.mark.parametrize("length", [0, 1, 50])
@pytest.mark.parametrize("case", OTHERS, ids=lambda case: case.__name__)
def test_numbers_are_those_of_the_whole(case, length, size, dtype):
    g = torch.Generator().manual_seed(1)
    x, w = (
        torch.rand(200, size, generator=g).to(dtype),
        0.1 * torch.randn(200, 4, generator=g).to(dtype),
    )
    i = torch.randperm(size, generator=g)[:length]

    def run(x, w, i):
        x, w = x.detach().requires_grad_(), w.detach().requires_grad_()
        out = case(x, i, w)
        out.sum().backward()
        return out.detach(), x.grad, w.grad

    want = run(x, w, i)
    mesh = spmd.make_mesh((4,), ("data",))
    at = spmd.mark_sharding(x.to("spmd"), mesh, (None, "data"))
    got = run(at, spmd.mark_sharding(w.to("spmd"), mesh, (None, None)), i.to("spmd"))
    tolerance = 0.05 if dtype == torch.bfloat16 else 1e-12
    for ours, theirs in zip(got, want):
        torch.testing.assert_close(ours.cpu(), theirs, rtol=tolerance, atol=tolerance)


@pytest.mark.parametrize("index", [32, -33])
def test_an_index_out_of_range_is_named(index):
    x, p, weights, lists = drawn(1)
    lists[0][3] = index
    with pytest.raises(IndexError, match=f"index {index} is out of bounds for dimension 0 with"):
        gradients("gated", *placed(spmd.make_mesh((4,), ("data",)), x, p, weights, lists))[0].cpu()


def experts_by_mask(x, chosen, weights):
    """Experts whose tokens a mask chooses, as transformers' Mixtral has them."""
    out = torch.zeros_like(x)
    for k, w in enumerate(weights):
        (i,) = (chosen == k).nonzero(as_tuple=True)
        out.index_add_(0, i, torch.tanh(x[i] @ w))
    return out


def test_rows_of_large_experts_are_sent_with_a_warning():
    g = torch.Generator().manual_seed(0)
    x, chosen = torch.randn(4096, 256, generator=g), torch.randint(2, (4096,), generator=g)
    weights = [0.1 * torch.randn(256, 256, generator=g) for _ in range(2)]
    want = experts_by_mask(x, chosen, weights)
    mesh = spmd.make_mesh((4,), ("data",))
    at, which = x.to("spmd"), chosen.to("spmd")
    spmd.mark_sharding((at, which), mesh, [("data", None), ("data",)])
    on_device = [w.to("spmd") for w in weights]
    words = (
        r"rows that lists take out of a sharded dimension at test_rows_by_index.py:\d+ are sent to "
        r"all devices, 2\.0 MiB in this program, and every device works on all of them. Experts of "
        r"torch_spmd.nn.MoE, or of torch.nn.functional.grouped_mm, are sharded"
    )
    with pytest.warns(UserWarning, match=words):
        got = experts_by_mask(at, which, on_device).cpu()
    torch.testing.assert_close(got, want, rtol=1e-4, atol=1e-5)
