# SPDX-License-Identifier: Apache-2.0
"""Four layers, two of them with eight experts, each token sent to its best two, as in GShard."""

from __future__ import annotations

import math

import torch
import torch.nn.functional as F
from torch import Tensor, nn

import torch_spmd as spmd
from benchmarks.workloads.common import Annotate, Workload, mark_parameters, tokens

LAYERS, WIDTH, HIDDEN, HEADS, LENGTH, VOCAB, BATCH, EXPERTS = 4, 384, 1536, 8, 256, 4096, 8, 8
CAPACITY = math.ceil(2 * LENGTH / EXPERTS * 1.25)


class Block(nn.Module):
    def __init__(self, experts: bool) -> None:
        super().__init__()
        self.norm1, self.norm2 = nn.LayerNorm(WIDTH), nn.LayerNorm(WIDTH)
        self.q, self.k, self.v, self.o = (nn.Linear(WIDTH, WIDTH, bias=False) for _ in range(4))
        self.experts = experts
        if experts:
            self.gate = nn.Linear(WIDTH, EXPERTS, bias=False)
            self.expert_up = nn.Parameter(torch.randn(EXPERTS, WIDTH, HIDDEN) * 0.02)
            self.expert_down = nn.Parameter(torch.randn(EXPERTS, HIDDEN, WIDTH) * 0.02)
        else:
            self.up = nn.Linear(WIDTH, HIDDEN, bias=False)
            self.down = nn.Linear(HIDDEN, WIDTH, bias=False)


def route(x: Tensor, gate: nn.Linear) -> tuple[Tensor, Tensor]:
    """[group, token, width] → weights [group, token, expert, slot], and the balance loss."""
    p = gate(x).softmax(-1)
    first = F.one_hot(p.argmax(-1), EXPERTS).to(p.dtype)
    weight1 = (p * first).sum(-1)
    rest = p * (1 - first)
    second = F.one_hot(rest.argmax(-1), EXPERTS).to(p.dtype)
    weight2 = (p * second).sum(-1)
    balance = (first.mean(1) * p.mean(1)).sum(-1).mean() * EXPERTS
    place1 = first.cumsum(1) * first - first
    first = first * (place1 < CAPACITY)
    place2 = (second.cumsum(1) - second + first.sum(1, keepdim=True)) * second
    second = second * (place2 < CAPACITY)
    weight1, weight2 = weight1 * first.sum(-1), weight2 * second.sum(-1)
    total = weight1 + weight2 + 1e-9

    def combine(weight: Tensor, chosen: Tensor, place: Tensor) -> Tensor:
        slot = F.one_hot((place * chosen).sum(-1).long(), CAPACITY).to(p.dtype)
        return (weight / total)[..., None, None] * chosen[..., None] * slot[:, :, None]

    return combine(weight1, first, place1) + combine(weight2, second, place2), balance


class MixtureOfExperts(nn.Module):
    def __init__(self, mark: Annotate) -> None:
        super().__init__()
        self.tokens = nn.Embedding(VOCAB, WIDTH)
        self.blocks = nn.ModuleList([Block(i % 2 == 1) for i in range(LAYERS)])
        self.norm = nn.LayerNorm(WIDTH)
        self.mark = mark

    def feed_forward(self, block: Block, h: Tensor) -> tuple[Tensor, Tensor | float]:
        if not block.experts:
            return block.down(F.gelu(block.up(h), approximate="tanh")), 0.0
        weights, balance = route(h, block.gate)
        sent = torch.einsum("gsec,gsm->egcm", (weights > 0).to(h.dtype), h)
        sent = self.mark(sent, "expert", None, None, None)
        y = F.relu(torch.einsum("egcm,emf->egcf", sent, block.expert_up))
        y = torch.einsum("egcf,efm->egcm", y, block.expert_down)
        y = self.mark(y, "expert", None, None, None)
        return torch.einsum("gsec,egcm->gsm", weights, y), balance

    def forward(self, inputs: Tensor, targets: Tensor) -> Tensor:
        x = self.mark(self.tokens(inputs), "expert", None, None)
        balance: Tensor | float = 0.0
        for block in self.blocks:
            h = block.norm1(x)
            q, k, v = (
                layer(h).view(BATCH, LENGTH, HEADS, -1).transpose(1, 2)
                for layer in (block.q, block.k, block.v)
            )
            o = F.scaled_dot_product_attention(q, k, v, is_causal=True)
            x = x + block.o(o.transpose(1, 2).reshape(BATCH, LENGTH, WIDTH))
            x = self.mark(x, "expert", None, None)
            y, more = self.feed_forward(block, block.norm2(x))
            x, balance = self.mark(x + y, "expert", None, None), balance + more
        logits = F.linear(self.norm(x), self.tokens.weight)
        return F.cross_entropy(logits.view(-1, VOCAB), targets.view(-1)) + 0.01 * balance


def build(annotated: bool) -> Workload:
    mesh = spmd.make_mesh((8,), ("expert",))
    model = MixtureOfExperts(Annotate(mesh, annotated)).to("spmd")
    rules = {"expert_up": ("expert", None, None), "expert_down": ("expert", None, None)}
    mark_parameters(model, mesh, rules)
    inputs, targets = (tokens(mesh, VOCAB, BATCH, LENGTH, "expert") for _ in range(2))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    read = {"inputs": inputs, "targets": targets}
    return Workload(mesh, model, optimizer, read, lambda: model(inputs, targets))
