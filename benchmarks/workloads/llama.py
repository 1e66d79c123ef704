# SPDX-License-Identifier: Apache-2.0
"""Four Llama layers of 512 with every matrix sharded over both axes."""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor, nn

import torch_spmd as spmd
from benchmarks.workloads.common import Annotate, Workload, mark_parameters, tokens

LAYERS, WIDTH, HIDDEN, HEADS, LENGTH, VOCAB, BATCH = 4, 512, 1536, 8, 256, 4096, 8


class Block(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.norm1, self.norm2 = nn.RMSNorm(WIDTH, eps=1e-6), nn.RMSNorm(WIDTH, eps=1e-6)
        self.q, self.k, self.v, self.o = (nn.Linear(WIDTH, WIDTH, bias=False) for _ in range(4))
        self.gate, self.up = (nn.Linear(WIDTH, HIDDEN, bias=False) for _ in range(2))
        self.down = nn.Linear(HIDDEN, WIDTH, bias=False)


def rotate(x: Tensor) -> Tensor:
    """Rotary positions on [batch, heads, length, width of a head]."""
    half = x.shape[-1] // 2
    frequency = 10000.0 ** (-torch.arange(0, half, device=x.device) / half)
    angle = torch.arange(LENGTH, device=x.device)[:, None] * frequency
    cos, sin = angle.cos(), angle.sin()
    a, b = x.chunk(2, dim=-1)
    return torch.cat([a * cos - b * sin, b * cos + a * sin], dim=-1)


class Llama(nn.Module):
    def __init__(self, mark: Annotate) -> None:
        super().__init__()
        self.embed = nn.Embedding(VOCAB, WIDTH)
        self.blocks = nn.ModuleList([Block() for _ in range(LAYERS)])
        self.norm = nn.RMSNorm(WIDTH, eps=1e-6)
        self.head = nn.Linear(WIDTH, VOCAB, bias=False)
        self.mark = mark

    def forward(self, inputs: Tensor, targets: Tensor) -> Tensor:
        x = self.mark(self.embed(inputs), "data", None, "model")
        for block in self.blocks:
            h = block.norm1(x)
            q, k, v = (
                layer(h).view(BATCH, LENGTH, HEADS, -1).transpose(1, 2)
                for layer in (block.q, block.k, block.v)
            )
            o = F.scaled_dot_product_attention(rotate(q), rotate(k), v, is_causal=True)
            x = x + block.o(o.transpose(1, 2).reshape(BATCH, LENGTH, WIDTH))
            h = block.norm2(x)
            x = x + block.down(F.silu(block.gate(h)) * block.up(h))
            x = self.mark(x, "data", None, "model")
        logits = self.head(self.norm(x))
        return F.cross_entropy(logits.view(-1, VOCAB), targets.view(-1))


def build(annotated: bool) -> Workload:
    mesh = spmd.make_mesh((2, 4), ("data", "model"))
    model = Llama(Annotate(mesh, annotated)).to("spmd")
    rules = {f"{n}.weight": ("data", "model") for n in ("q", "k", "v", "down")}
    rules |= {f"{n}.weight": ("model", "data") for n in ("o", "gate", "up", "embed", "head")}
    mark_parameters(model, mesh, rules)
    inputs, targets = (tokens(mesh, VOCAB, BATCH, LENGTH, "data") for _ in range(2))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    read = {"inputs": inputs, "targets": targets}
    return Workload(mesh, model, optimizer, read, lambda: model(inputs, targets))
