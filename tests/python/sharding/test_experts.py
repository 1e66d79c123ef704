# SPDX-License-Identifier: Apache-2.0
"""MoE against the dense computation, expert by expert and token by token, and what it sends."""

import copy
import math

import pytest
import torch
import torch.nn.functional as F

import torch_spmd as spmd

pytestmark = pytest.mark.modes("coalesced", "verified")


def dense(moe, x, groups):
    """Each token through its experts in a loop; and what each expert was asked for and refused."""
    tokens = x.reshape(groups, -1, x.shape[-1])
    output = torch.zeros_like(tokens)
    load, dropped = torch.zeros(moe.experts, dtype=torch.long), torch.zeros(moe.experts).long()
    probabilities = (tokens @ moe.router.weight.T).float().softmax(-1)
    count = tokens.shape[1]
    capacity = count
    if moe.capacity_factor is not None:
        capacity = math.ceil(moe.capacity_factor * count * moe.top_k / moe.experts)
    for g in range(groups):
        taken = [0] * moe.experts
        best = probabilities[g].topk(moe.top_k, -1)
        weights = best.values
        if moe.normalize:
            weights = weights / weights.sum(-1, keepdim=True)
        for choice in range(moe.top_k):
            for t in range(count):
                e = best.indices[t, choice]
                load[e] += 1
                if taken[e] >= capacity:
                    dropped[e] += 1
                    continue
                taken[e] += 1
                h = moe.activation(tokens[g, t] @ moe.up[e])
                if moe.gate is not None:
                    h = h * (tokens[g, t] @ moe.gate[e])
                row = torch.zeros_like(output)
                row[g, t] = weights[t, choice].to(x.dtype) * (h @ moe.down[e])
                output = output + row
    share = load / load.sum()
    balance = moe.experts * (share * probabilities.mean((0, 1))).sum()
    return output.view(x.shape), balance, load, dropped


CASES = {
    "capacity": {},
    "tight": {"capacity_factor": 0.5},
    "dropless": {"capacity_factor": None},
    "gated": {"gated": True, "activation": F.silu, "top_k": 1, "normalize": False},
    "three": {"top_k": 3, "capacity_factor": 0.8},
}


@pytest.mark.parametrize("case", CASES)
@pytest.mark.parametrize("shape", [(4,), (2, 2)], ids=str)
def test_it_equals_the_dense_computation(shape, case):
    torch.manual_seed(0)
    mesh = spmd.make_mesh(shape, ("data", "expert")[-len(shape) :])
    batch = ("data",) if len(shape) > 1 else ()
    moe = spmd.nn.MoE(6, 10, 8, dtype=torch.float64, **CASES[case])
    x, weight = torch.randn(4, 5, 6, dtype=torch.float64), torch.randn(4, 5, 6, dtype=torch.float64)
    theirs, their_x = copy.deepcopy(moe), x.clone().requires_grad_()
    expected = dense(theirs, their_x, 4)
    ((expected[0] * weight).sum() + 0.1 * expected[1]).backward()
    moe = moe.to("spmd").shard(mesh, batch=batch)
    our_x = spmd.mark_sharding(
        x.to("spmd"), mesh, ((*batch, "expert"), None, None)
    ).requires_grad_()
    got = moe(our_x)
    ((got.output * weight.to("spmd")).sum() + 0.1 * got.balance_loss).backward()
    for ours, other in zip(got, expected):
        torch.testing.assert_close(ours.detach().cpu(), other.detach())
    assert (got.dropped.sum().item() == 0) == (case == "dropless")
    assert got.load.sum().item() == 20 * moe.top_k
    torch.testing.assert_close(our_x.grad.cpu(), their_x.grad)
    for ours, other in zip(moe.parameters(), theirs.parameters()):
        torch.testing.assert_close(ours.grad.cpu(), other.grad)


def test_it_is_the_same_layer_on_the_cpu():
    torch.manual_seed(0)
    moe = spmd.nn.MoE(6, 10, 8, groups=4)
    x = torch.randn(4, 5, 6)
    expected = moe(x)
    mesh = spmd.make_mesh((2,), ("expert",))
    got = copy.deepcopy(moe).to("spmd").shard(mesh)(x.to("spmd"))
    for ours, other in zip(got, expected):
        torch.testing.assert_close(ours.cpu(), other)


def test_tokens_are_sent_to_experts_and_back():
    """Two all-to-alls forwards and two backwards, each of the capacity of all experts."""
    mesh = spmd.make_mesh((4,), ("expert",))
    moe = spmd.nn.MoE(32, 64, 8).to("spmd").shard(mesh)
    x = spmd.mark_sharding(torch.randn(16, 16, 32).to("spmd"), mesh, ("expert", None, None))
    x.requires_grad_()
    spmd.sync(wait=True)
    got = moe(x)
    spmd.sync(wait=True)
    capacity = math.ceil(1.25 * 64 * 2 / 8)
    exchange = ("all_to_all", "expert", 8 * capacity * 32 * 4)
    forward = [
        (row.kind, row.axes, row.bytes) for row in spmd.debug.collectives() if row.bytes > 256
    ]
    assert forward == [exchange] * 2
    (got.output.square().sum() + got.balance_loss).backward()
    spmd.sync(wait=True)
    rows = [(row.kind, row.axes, row.bytes) for row in spmd.debug.collectives() if row.bytes > 256]
    gradient = ("all_reduce", "expert", 8 * 32 * 4)  # of the router
    assert sorted(rows) == [gradient, exchange, exchange]


def test_errors():
    mesh = spmd.make_mesh((4,), ("expert",))
    moe = spmd.nn.MoE(6, 10, 8)
    for make, error, message in (
        (lambda: spmd.nn.MoE(6, 10, 8, 9), ValueError, "MoE: top_k must be .*got 9"),
        (
            lambda: spmd.nn.MoE(6, 10, 8, capacity_factor=0.0),
            ValueError,
            "MoE: capacity_factor must be a positive number, or None for a layer that drops",
        ),
        (
            lambda: spmd.nn.MoE(6, 10, 6).to("spmd").shard(mesh),
            ValueError,
            "MoE.shard: 6 experts cannot be shared by 4 devices; their number must be a multiple",
        ),
        (
            lambda: spmd.nn.MoE(6, 10, 8, groups=2).to("spmd").shard(mesh),
            ValueError,
            "MoE.shard: 2 groups cannot be shared by 4 devices",
        ),
        (lambda: copy.deepcopy(moe).shard(mesh), ValueError, "not on 'spmd'|is on 'cpu'"),
        (lambda: moe(torch.ones(3, 5)), ValueError, r"x must have shape \[..., 6\].*\(3, 5\)"),
    ):
        with pytest.raises(error, match=message):
            make()
