# SPDX-License-Identifier: Apache-2.0
"""Decoders as the published runs had them, and a training step of one on a mesh."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.utils.checkpoint import (
    CheckpointPolicy,
    checkpoint,
    create_selective_checkpoint_contexts,
)

import torch_spmd as spmd
from benchmarks.published.factored import Factored
from benchmarks.published.rows import Row
from benchmarks.published.specs import Specs

BYTES = {"bf16": torch.bfloat16, "mixed": torch.float32, "f32": torch.float32}


def parameter(*shape: int, dtype: torch.dtype) -> nn.Parameter:
    return nn.Parameter(torch.randn(shape, dtype=dtype, device="spmd"))


class Norm(nn.Module):
    def __init__(self, row: Row, dtype: torch.dtype) -> None:
        super().__init__()
        self.weight = parameter(row.width, dtype=dtype)
        self.bias = parameter(row.width, dtype=dtype) if row.norm == "ln" else None

    def forward(self, x: Tensor) -> Tensor:
        if self.bias is not None:
            return F.layer_norm(x, x.shape[-1:], self.weight, self.bias)
        scale = torch.rsqrt(x.float().pow(2).mean(-1, keepdim=True) + 1e-6)
        return (x * scale).to(x.dtype) * self.weight


class Product(nn.Module):
    """A linear layer of which `role` says how it is sharded."""

    def __init__(self, role: str, row: Row, width: int, out: int, dtype: torch.dtype) -> None:
        super().__init__()
        self.role = role
        self.weight = parameter(out, width, dtype=dtype)
        self.bias = parameter(out, dtype=dtype) if row.biases else None

    def forward(self, x: Tensor) -> Tensor:
        return F.linear(x, self.weight, self.bias)


def rotated(x: Tensor) -> Tensor:
    """Rotary positions of [batch, heads, length, head]."""
    length, head = x.shape[-2:]
    place = torch.arange(length, device=x.device, dtype=torch.float32)[:, None]
    rate = torch.arange(head // 2, device=x.device, dtype=torch.float32)[None] * (-2.0 / head)
    angle = place * torch.pow(10000.0, rate)
    cos, sin = angle.cos().to(x.dtype), angle.sin().to(x.dtype)
    first, second = x[..., : head // 2], x[..., head // 2 :]
    return torch.cat((first * cos - second * sin, second * cos + first * sin), -1)


class Block(nn.Module):
    def __init__(self, row: Row, specs: Specs, dtype: torch.dtype) -> None:
        super().__init__()
        self.row, self.specs = row, specs
        heads, kv = row.heads * row.head, row.kv * row.head
        self.norm1, self.norm2 = Norm(row, dtype), Norm(row, dtype)
        self.q = Product("q", row, row.width, heads, dtype)
        self.k = Product("k", row, row.width, kv, dtype)
        self.v = Product("v", row, row.width, kv, dtype)
        self.o = Product("o", row, heads, row.width, dtype)
        if row.activation != "gelu":
            self.gate = Product("gate", row, row.width, row.ff, dtype)
        self.up = Product("up", row, row.width, row.ff, dtype)
        self.down = Product("down", row, row.ff, row.width, dtype)

    def attention(self, x: Tensor) -> Tensor:
        batch, length, _ = x.shape
        q, k, v = (
            layer(x).view(batch, length, -1, self.row.head).transpose(1, 2)
            for layer in (self.q, self.k, self.v)
        )
        if self.row.positions == "rotary":
            q, k = rotated(q), rotated(k)
        q = self.specs.heads(q)
        if self.row.kv == self.row.heads or self.row.attention == "einsum":
            k, v = self.specs.heads(self.repeated(k)), self.specs.heads(self.repeated(v))
        if self.row.attention == "einsum":
            weights = self.specs.heads(q @ k.transpose(-1, -2)) * self.row.head**-0.5
            where = torch.arange(length, device=x.device)
            weights = weights.masked_fill(where[None, :] > where[:, None], float("-inf"))
            y = self.specs.heads(weights.softmax(-1)).to(v.dtype) @ v
        else:
            grouped = self.row.kv != self.row.heads
            y = F.scaled_dot_product_attention(q, k, v, is_causal=True, enable_gqa=grouped)
        return self.o(y.transpose(1, 2).reshape(batch, length, -1))

    def repeated(self, x: Tensor) -> Tensor:
        times = self.row.heads // self.row.kv
        return x if times == 1 else x.repeat_interleave(times, 1)

    def feed_forward(self, x: Tensor) -> Tensor:
        up = self.specs.hidden(self.up(x))
        if self.row.activation == "gelu":
            return self.down(F.gelu(up, approximate="tanh"))
        gate = self.specs.hidden(self.gate(x))
        gate = F.silu(gate) if self.row.activation == "swiglu" else F.gelu(gate, approximate="tanh")
        return self.down(gate * up)

    def forward(self, x: Tensor) -> Tensor:
        x = self.specs.stream(x + self.attention(self.norm1(x)))
        return self.specs.stream(x + self.feed_forward(self.norm2(x)))


_PRODUCTS = (torch.ops.aten.mm.default, torch.ops.aten.linear.default)
_ATTENTION = (
    torch.ops.aten._scaled_dot_product_fused_attention_overrideable.default,
    torch.ops.aten._scaled_dot_product_flash_attention.default,
    torch.ops.aten._scaled_dot_product_flash_attention_for_cpu.default,
    torch.ops.aten.scaled_dot_product_attention.default,
)


def half_of_products() -> Any:
    """Keeps attention and every other product, as torchtitan's "op" selective checkpointing."""
    products = {False: 0, True: 0}  # forward, recomputation

    def policy(context: Any, op: Any, *args: Any, **kwargs: Any) -> CheckpointPolicy:
        if op in _PRODUCTS:
            products[context.is_recompute] += 1
            kept = products[context.is_recompute] % 2 == 1
        else:
            kept = op in _ATTENTION
        return CheckpointPolicy.MUST_SAVE if kept else CheckpointPolicy.PREFER_RECOMPUTE

    return create_selective_checkpoint_contexts(policy)


class Decoder(nn.Module):
    def __init__(self, row: Row, specs: Specs) -> None:
        super().__init__()
        dtype = BYTES[row.precision]
        self.row, self.specs = row, specs
        self.embed = parameter(row.vocab, row.width, dtype=dtype)
        if row.positions == "learned":
            self.positions = parameter(row.length, row.width, dtype=dtype)
        self.blocks = nn.ModuleList([Block(row, specs, dtype) for _ in range(row.layers)])
        self.norm = Norm(row, dtype)
        if not row.tied:
            self.head = parameter(row.vocab, row.width, dtype=dtype)

    def called(self, block: nn.Module, x: Tensor) -> Any:
        if not self.row.remat:
            return block(x)
        if self.row.remat == "full":
            return checkpoint(block, x, use_reentrant=False)
        return checkpoint(block, x, use_reentrant=False, context_fn=half_of_products)

    def forward(self, inputs: Tensor, targets: Tensor) -> Tensor:
        x = F.embedding(inputs, self.embed)
        if self.row.positions == "learned":
            x = x + self.positions
        if self.row.precision == "mixed":
            x = x.to(torch.bfloat16)
        x = self.specs.stream(x)
        for block in self.blocks:
            x = self.called(block, x)
        logits = F.linear(self.norm(x), self.embed if self.row.tied else self.head)
        return F.cross_entropy(logits.view(-1, self.row.vocab), targets.view(-1))


@dataclass
class Training:
    """A model on its mesh, and what trains it."""

    model: Decoder
    step: Callable[[], None]


def training(row: Row) -> Training:
    """The run that `row` describes, on the default backend, with the optimizer's state made."""
    mesh = spmd.make_mesh(tuple(row.mesh.values()), tuple(row.mesh))
    specs = Specs(row, mesh)
    model = Decoder(row, specs)
    for name, tensor in model.named_parameters():
        specs.parameter(name, tensor)
    optimizer = Factored(model.parameters()) if row.optimizer == "adafactor" else None
    if optimizer is None:
        optimizer = torch.optim.AdamW(model.parameters(), lr=1e-4, foreach=True)
        for name, p in model.named_parameters():
            state = {
                n: specs.parameter(name, torch.rand_like(p)) for n in ("exp_avg", "exp_avg_sq")
            }
            optimizer.state[p] = {"step": torch.tensor(1.0), **state}
    tokens = torch.randint(row.vocab, (2, row.batch, row.length), device="spmd")
    inputs, targets = (specs.batch(t.clone()) for t in tokens)
    spmd.sync()

    def step() -> None:
        with torch.autocast("spmd", torch.bfloat16, enabled=row.precision == "mixed"):
            loss = model(inputs, targets)
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()

    return Training(model, step)
