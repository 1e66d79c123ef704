# SPDX-License-Identifier: Apache-2.0
"""A GPT of 6 layers × 384 with a tied head of 4096, sharded in five ways."""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor, nn

import torch_spmd as spmd
from benchmarks.workloads.common import (
    Annotate,
    Spec,
    Workload,
    largest_dim,
    mark_parameters,
    tokens,
)

LAYERS, WIDTH, HEADS, LENGTH, VOCAB, BATCH = 6, 384, 8, 256, 4096, 8


class Block(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.norm1, self.norm2 = nn.LayerNorm(WIDTH), nn.LayerNorm(WIDTH)
        self.q, self.k, self.v = (nn.Linear(WIDTH, WIDTH) for _ in range(3))
        self.out = nn.Linear(WIDTH, WIDTH)
        self.up, self.down = nn.Linear(WIDTH, 4 * WIDTH), nn.Linear(4 * WIDTH, WIDTH)


class GPT(nn.Module):
    """`data` and `model` are the axes that activations are annotated with; `residual` shards
    the residual stream's positions."""

    def __init__(
        self, mark: Annotate, data: str | None, model: str | None, residual: str | None
    ) -> None:
        super().__init__()
        self.tokens = nn.Embedding(VOCAB, WIDTH)
        self.positions = nn.Embedding(LENGTH, WIDTH)
        self.blocks = nn.ModuleList([Block() for _ in range(LAYERS)])
        self.norm = nn.LayerNorm(WIDTH)
        self.mark, self.data, self.model, self.residual = mark, data, model, residual

    def stream(self, x: Tensor) -> Tensor:
        return self.mark(x, self.data, self.residual, None)

    def attention(self, block: Block, x: Tensor) -> Tensor:
        batch, length, width = x.shape
        q, k, v = (
            self.mark(
                layer(x).view(batch, length, HEADS, -1).transpose(1, 2),
                self.data,
                self.model,
                None,
                None,
            )
            for layer in (block.q, block.k, block.v)
        )
        heads = F.scaled_dot_product_attention(q, k, v, is_causal=True)
        return block.out(heads.transpose(1, 2).reshape(batch, length, width))

    def forward(self, inputs: Tensor, targets: Tensor) -> Tensor:
        where = torch.arange(inputs.shape[1], device=inputs.device)
        x = self.stream(self.tokens(inputs) + self.positions(where))
        for block in self.blocks:
            x = self.stream(x + self.attention(block, block.norm1(x)))
            h = F.gelu(block.up(block.norm2(x)), approximate="tanh")
            x = self.stream(x + block.down(self.mark(h, self.data, None, self.model)))
        logits = F.linear(self.norm(x), self.tokens.weight)
        logits = self.mark(logits, self.data, None, self.model)
        return F.cross_entropy(logits.view(-1, VOCAB), targets.view(-1))


def _workload(mesh: spmd.Mesh, model: GPT, batch_axis: str | None, batch: int = BATCH) -> Workload:
    """The number of tokens is the same for any batch."""
    length = BATCH * LENGTH // batch
    inputs, targets = (tokens(mesh, VOCAB, batch, length, batch_axis) for _ in range(2))
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3, betas=(0.9, 0.95))
    read = {"inputs": inputs, "targets": targets}
    return Workload(mesh, model, optimizer, read, lambda: model(inputs, targets))


def data_parallel(annotated: bool, devices: int = 8) -> Workload:
    mesh = spmd.make_mesh((devices,), ("data",))
    model = GPT(Annotate(mesh, annotated), "data", None, None).to("spmd")
    mark_parameters(model, mesh, {})
    return _workload(mesh, model, "data", max(BATCH, devices))


def _shard_largest(mesh: spmd.Mesh, axis: str, tensors: list[Tensor]) -> None:
    for t in tensors:
        spmd.mark_sharding(t, mesh, largest_dim(t.shape, axis, mesh.size))


def fully_sharded(annotated: bool) -> Workload:
    mesh = spmd.make_mesh((8,), ("fsdp",))
    model = GPT(Annotate(mesh, annotated), "fsdp", None, None).to("spmd")
    _shard_largest(mesh, "fsdp", list(model.parameters()))
    return _workload(mesh, model, "fsdp")


def sharded_optimizer(annotated: bool) -> Workload:
    mesh = spmd.make_mesh((8,), ("data",))
    model = GPT(Annotate(mesh, annotated), "data", None, None).to("spmd")
    mark_parameters(model, mesh, {})
    workload = _workload(mesh, model, "data")
    workload.step()  # creates the state
    for state in workload.optimizer.state.values():
        _shard_largest(mesh, "data", [state["exp_avg"], state["exp_avg_sq"]])
    return workload


_MEGATRON: dict[str, Spec] = {
    **{f"{name}.weight": ("model", None) for name in ("q", "k", "v", "up", "tokens")},
    **{f"{name}.bias": ("model",) for name in ("q", "k", "v", "up")},
    **{f"{name}.weight": (None, "model") for name in ("out", "down")},
}


def tensor_parallel(annotated: bool, residual: str | None = None) -> Workload:
    mesh = spmd.make_mesh((8,), ("model",))
    model = GPT(Annotate(mesh, annotated), None, "model", residual).to("spmd")
    mark_parameters(model, mesh, _MEGATRON)
    return _workload(mesh, model, None)


def sequence_parallel(annotated: bool) -> Workload:
    """As `tensor_parallel`, with the residual stream sharded by positions. Always annotated."""
    return tensor_parallel(True, residual="model")
