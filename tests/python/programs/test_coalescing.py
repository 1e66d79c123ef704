# SPDX-License-Identifier: Apache-2.0
"""Devices that share a place run as one: same results, same reported collectives, same shards."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
import torch
from torch import Tensor, nn

import torch_spmd as spmd


@pytest.fixture(autouse=True)
def tile_by_tile() -> None:
    spmd.config.update(coalesce=False)


class Small(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.embed = nn.Embedding(11, 6)
        self.conv = nn.Conv1d(6, 8, 3, padding=1, bias=False)
        self.norm = nn.BatchNorm1d(8)
        self.out = nn.Linear(8, 11)

    def forward(self, tokens: Tensor) -> Tensor:
        x = self.embed(tokens).transpose(1, 2)
        return self.out(self.norm(self.conv(x)).relu().transpose(1, 2))


def trained(device: str, coalesced: list[bool]) -> tuple[list[Tensor], nn.Module]:
    """Losses of a step in each mode alternately, and the module, under every sharding."""
    torch.manual_seed(0)
    module, tokens = Small().to(device), torch.randint(11, (5, 7)).to(device)
    if device == "spmd":
        mesh = spmd.make_mesh((2, 3), ("a", "b"))
        spmd.mark_sharding(module.embed.weight, mesh, ("b", None))
        spmd.mark_sharding(module.conv.weight, mesh, ("a", "b", None))
        spmd.mark_sharding(module.out.weight, mesh, (None, "a"))
        spmd.mark_sharding(tokens, mesh, ("a", "b"))
    optimizer, losses = torch.optim.AdamW(module.parameters(), lr=0.1), []
    for on in coalesced:
        spmd.config.update(coalesce=on)
        logits = module(tokens)
        loss = nn.functional.cross_entropy(logits.flatten(0, 1), tokens.flatten())
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        losses.append(loss.detach().cpu())
    return losses, module


@pytest.mark.parametrize(
    "ways", ([True] * 4, [False] * 4, [True, False, False, True], [False, True, True, False])
)
def test_results_do_not_depend_on_coalescing(ways: list[bool]) -> None:
    expected, reference = trained("cpu", ways)
    losses, module = trained("spmd", ways)
    torch.testing.assert_close(losses, expected, rtol=1e-5, atol=1e-5)
    mine = module.state_dict()
    for name, value in reference.state_dict().items():
        torch.testing.assert_close(mine[name].cpu(), value, rtol=2e-4, atol=2e-4)


def test_shards_and_communication_are_those_of_the_devices() -> None:
    mesh = spmd.make_mesh((4,), ("x",))
    seen = []
    for on in (True, False):
        spmd.config.update(coalesce=on)
        x = spmd.mark_sharding(torch.arange(20.0).reshape(10, 2).to("spmd"), mesh, ("x", None))
        y = x + 1
        total = y.sum(0)
        total.cpu()
        seen.append((y, spmd.debug.collectives(), spmd.debug.memory()))
    (whole, sent, held), (tiled, sent_by_tiles, held_by_tiles) = seen
    assert [(c.kind, c.bytes) for c in sent.rows] == [(c.kind, c.bytes) for c in sent_by_tiles.rows]
    assert len(sent.rows) == 1
    assert str(held) == str(held_by_tiles)
    assert spmd.sharding_of(whole) == spmd.sharding_of(tiled)
    for a, b in zip(spmd.local_shards(whole), spmd.local_shards(tiled), strict=True):
        assert (a.device, a.index) == (b.device, b.index)
        assert torch.equal(a.data, b.data)
    assert [s.data.shape[0] for s in spmd.local_shards(whole)] == [3, 3, 3, 1]


def test_shards_loaded_from_outside_are_put_together() -> None:
    mesh = spmd.make_mesh((4,), ("x",))
    spmd.config.update(coalesce=True)
    x = spmd.mark_sharding(torch.zeros(10, 2, device="spmd"), mesh, ("x", None))
    (x * 2).cpu()
    shards = spmd.local_shards(x)
    for shard in shards:
        shard.data.fill_(shard.device)
    spmd.load_local_shards_(x, shards)
    expected = torch.tensor([0.0, 0, 0, 1, 1, 1, 2, 2, 2, 3])[:, None].expand(10, 2)
    assert torch.equal(x.cpu(), expected)
    x.mul_(2)
    assert torch.equal(x.cpu(), expected * 2)


@pytest.fixture
def each_by_itself() -> Iterator[None]:
    yield
    spmd.config.update(deduplicate=True)


def test_replicas_computed_by_themselves_have_the_same_bits(each_by_itself: None) -> None:
    def step() -> list[Tensor]:
        losses, module = trained("spmd", [False, False])
        return [*losses, *(p.detach().cpu() for p in module.parameters())]

    shared = step()
    spmd.config.update(deduplicate=False)
    assert all(torch.equal(a, b) for a, b in zip(step(), shared))


def test_uses_of_a_reduced_transpose_have_the_same_bits(each_by_itself: None) -> None:
    mesh = spmd.make_mesh((4, 2), ("a", "b"))

    def made(seed: int, spec: tuple[object, ...], *size: int) -> Tensor:
        generator = torch.Generator().manual_seed(seed)
        values = torch.randn(size, generator=generator, dtype=torch.double)
        return spmd.mark_sharding(values.to("spmd"), mesh, spec)

    def products() -> list[Tensor]:
        x = made(1, (None, ("b", "a")), 300, 64)
        w = made(2, ("b", None), 64, 384)
        reduced = (w.t() @ x.t()).t()
        result = reduced @ made(4, ("b", "a"), 300, 384).t()
        spmd.sync(wait=True)
        return [reduced.cpu(), result.cpu()]

    shared = products()
    spmd.config.update(deduplicate=False)
    assert all(torch.equal(a, b) for a, b in zip(products(), shared))
