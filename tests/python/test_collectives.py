# SPDX-License-Identifier: Apache-2.0
"""What devices say to each other in one training step, counted exactly."""

from collections import Counter

import pytest
import torch
from common.gpt import GPT, GPTConfig
from common.strategies import strategy

import torch_spmd as spmd

LAYERS, WIDTH, VOCAB, BATCH, LENGTH = 3, 64, 256, 8, 32


def step(mesh, plan):
    """One GPT step; the table of its collectives and the model."""
    torch.manual_seed(0)
    config = GPTConfig(
        vocab_size=VOCAB, block=LENGTH, layers=LAYERS, width=WIDTH, heads=8, dropout=0.0
    )
    model = GPT(config).to("spmd")
    chosen = strategy(plan, mesh.axis_names)
    spmd.shard_module(model, mesh, chosen.rules)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    tokens = torch.randint(VOCAB, (BATCH, LENGTH)).to("spmd")
    spmd.mark_sharding(tokens, mesh, chosen.inputs)
    loss = model(tokens, tokens)
    loss.backward()
    optimizer.step()
    return spmd.debug.collectives(), model


def kinds(rows):
    return Counter(row.kind for row in rows)


@pytest.fixture
def mesh():
    return spmd.make_mesh((4,), ("x",))


def test_dp_reduces_every_gradient_once(mesh):
    table, model = step(mesh, "dp")
    gradient_bytes = sum(4 * p.numel() for p in model.parameters())
    assert kinds(table.large) == {"all_reduce": 1}
    assert table.large[0].bytes == gradient_bytes
    assert len(table.small) <= 3


def test_tp_needs_four_reductions_per_layer(mesh):
    table, _ = step(mesh, "tp")
    activation = 4 * BATCH * LENGTH * WIDTH
    large = [row for row in table.rows if row.bytes >= activation]
    assert kinds(large) == {"all_reduce": 4 * LAYERS + 2}
    assert {row.bytes for row in large} == {activation}
    others = [row for row in table.rows if row.bytes < activation]
    assert kinds(others).keys() == {"all_reduce"}
    over_tokens = [row for row in others if row.bytes >= 4 * BATCH * LENGTH]
    assert sum(row.bytes for row in over_tokens) <= 3 * 4 * BATCH * LENGTH


def test_fsdp_gathers_weights_and_scatters_gradients(mesh):
    table, _ = step(mesh, "fsdp")
    assert set(kinds(table.large)) == {"all_gather", "reduce_scatter"}
    assert len(table.small) <= 3


def test_2d_never_gathers_an_activation():
    table, _ = step(spmd.make_mesh((2, 4), ("data", "model")), "2d")
    assert set(kinds(table.large)) == {"all_reduce"}
