# SPDX-License-Identifier: Apache-2.0
"""A program of another size takes over the plan of an earlier one: it computes the same, and sends
hardly more than a program whose plan was searched for its own size."""

from __future__ import annotations

import pytest
import torch
import torch.nn.functional as F
from torch import nn

import torch_spmd as spmd
from torch_spmd import P


class Block(nn.Module):
    """Attention over a sequence, and an MLP."""

    def __init__(self) -> None:
        super().__init__()
        self.table = nn.Embedding(50, 32)
        self.qkv = nn.Linear(32, 96)
        self.out = nn.Linear(32, 32)
        self.up = nn.Linear(32, 128)
        self.down = nn.Linear(128, 32)

    def forward(self, ids: torch.Tensor) -> torch.Tensor:
        x = self.table(ids)
        q, k, v = (t.unflatten(-1, (4, 8)).transpose(1, 2) for t in self.qkv(x).chunk(3, -1))
        heads = F.scaled_dot_product_attention(q, k, v, is_causal=True)
        x = x + self.out(heads.transpose(1, 2).flatten(2))
        return self.down(F.gelu(self.up(x))) @ self.table.weight.T


def sharded(how: str) -> tuple[nn.Module, spmd.Mesh, P]:
    torch.manual_seed(0)
    model = Block().to("spmd")
    mesh = spmd.make_mesh((2, 4), ("data", "model"))
    if how in ("tp", "2d"):
        for name, spec in {
            "qkv": P("model", None),
            "out": P(None, "model"),
            "up": P("model", None),
            "down": P(None, "model"),
        }.items():
            spmd.mark_sharding(getattr(model, name).weight, mesh, spec)
    if how in ("fsdp", "2d"):
        spmd.fsdp(model, mesh, "data")
    return model, mesh, P("data", None) if how != "tp" else P(None, None)


def train(how: str, sizes: list[tuple[int, int]], forget: bool) -> tuple[list[float], list[int]]:
    """The losses, and the bytes that each program sends, of one step per batch and length."""
    spmd._C.forget_programs()
    model, mesh, batch_spec = sharded(how)
    optimizer = torch.optim.SGD(model.parameters(), 0.1, momentum=0.9)
    losses, sent = [], []
    for batch, length in sizes:
        ids = torch.arange(batch * length).reshape(batch, length).mul_(7).remainder_(50).to("spmd")
        spmd.mark_sharding(ids, mesh, batch_spec)
        if forget:
            spmd._C.forget_programs()
        loss = F.cross_entropy(model(ids).flatten(0, 1), ids.flatten())
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()
        losses.append(loss.item())
        sent.append(sum(c.bytes for c in spmd.debug.collectives().rows))
    return losses, sent


SIZES = {
    "a shorter batch": [(8, 16), (8, 16), (6, 16), (5, 16)],
    "longer sequences": [(8, 16), (8, 16), (8, 17), (8, 18), (8, 31), (8, 33)],
}


@pytest.mark.parametrize("how", ["dp", "tp", "fsdp", "2d"])
@pytest.mark.parametrize("sizes", SIZES)
def test_sends_hardly_more_than_after_a_search(how: str, sizes: str) -> None:
    losses, sent = train(how, SIZES[sizes], forget=False)
    expected_losses, expected = train(how, SIZES[sizes], forget=True)
    assert losses == pytest.approx(expected_losses, rel=1e-5)
    assert all(n <= 1.1 * m for n, m in zip(sent, expected, strict=True)), (sent, expected)


def test_the_graph_that_is_shown_later_is_of_the_plan_that_ran() -> None:
    train("2d", SIZES["longer sequences"], forget=False)
    shown = str(spmd.debug.print_graph())
    train("2d", SIZES["longer sequences"], forget=True)
    assert shown == str(spmd.debug.print_graph())
