# SPDX-License-Identifier: Apache-2.0
"""Models without a mark, each with the specs that people write for it by hand."""

from __future__ import annotations

import itertools
import random
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from benchmarks.workloads.common import Spec, largest_dim

Rules = dict[str, Spec]


@dataclass(frozen=True)
class Case:
    """`columns` and `rows`: ends of the names of the matrices whose outputs, and whose inputs,
    Megatron shards; of an embedding, rows are what is looked up."""

    name: str
    build: Callable[[], nn.Module]
    batch: Callable[[], tuple[Tensor, ...]]
    loss: Callable[..., Tensor]
    columns: tuple[str, ...] = ()
    rows: tuple[str, ...] = ()


def by_hand(case: Case, mesh: dict[str, int]) -> dict[str, Rules]:
    """Specs of every parameter: data parallel, fully sharded, Megatron's, and both."""
    with torch.device("meta"):
        model = case.build()
    axes = list(mesh)
    found: dict[str, Rules] = {"data parallel": {}, "fully sharded": {}}
    if len(axes) == 2 and case.columns:
        found |= {"Megatron": {}, "2-D": {}}
    for name, p in model.named_parameters():
        megatron = _megatron(case, name, p, axes[-1], mesh[axes[-1]])
        options = {
            "data parallel": (None,) * p.dim(),
            "fully sharded": _sharded(p, axes[0], mesh[axes[0]], (None,) * p.dim()),
            "Megatron": megatron,
            "2-D": _sharded(p, axes[0], mesh[axes[0]], megatron),
        }
        for kind, rules in found.items():
            rules[name] = options[kind]
    return found


def _megatron(case: Case, name: str, p: Tensor, axis: str, size: int) -> Spec:
    """Biases of column-parallel layers are sharded as their outputs are."""
    column = any(name.removesuffix(".weight").removesuffix(".bias").endswith(end)
                 for end in case.columns)  # fmt: skip
    row = name.endswith(".weight") and any(
        name.removesuffix(".weight").endswith(end) for end in case.rows
    )
    spec: list[Any] = [None] * p.dim()
    dim = 0 if column else 1 if row and p.dim() > 1 else None
    if dim is not None and p.shape[dim] % size == 0:
        spec[dim] = axis
    return tuple(spec)


def _sharded(p: Tensor, axis: str, size: int, taken: Spec) -> Spec:
    """The largest dimension of a matrix that is free, over `axis`."""
    if p.dim() < 2:
        return taken
    shape = [0 if entry is not None else n for n, entry in zip(p.shape, taken, strict=True)]
    added = largest_dim(shape, axis, size)
    return tuple(a if a is not None else b for a, b in zip(taken, added, strict=True))


class Block(nn.Module):
    """Pre-norm attention with as many heads of keys as said, and an MLP, gated or not."""

    def __init__(self, width: int, heads: int, kv: int, ff: int, gated: bool, causal: bool) -> None:
        super().__init__()
        self.heads, self.kv, self.causal = heads, kv, causal
        head = width // heads
        self.norm1, self.norm2 = nn.LayerNorm(width), nn.LayerNorm(width)
        self.q = nn.Linear(width, width, bias=not gated)
        self.k, self.v = (nn.Linear(width, kv * head, bias=not gated) for _ in range(2))
        self.o = nn.Linear(width, width, bias=not gated)
        self.gate = nn.Linear(width, ff, bias=False) if gated else None
        self.up = nn.Linear(width, ff, bias=not gated)
        self.down = nn.Linear(ff, width, bias=not gated)

    def forward(self, x: Tensor) -> Tensor:
        batch, length, width = x.shape
        h = self.norm1(x)
        q, k, v = (
            layer(h).view(batch, length, -1, width // self.heads).transpose(1, 2)
            for layer in (self.q, self.k, self.v)
        )
        a = F.scaled_dot_product_attention(
            q, k, v, is_causal=self.causal, enable_gqa=self.kv != self.heads
        )
        x = x + self.o(a.transpose(1, 2).reshape(batch, length, width))
        h = self.norm2(x)
        up = self.up(h)
        hidden = F.gelu(up) if self.gate is None else F.silu(self.gate(h)) * up
        return x + self.down(hidden)


class Transformer(nn.Module):
    def __init__(
        self, layers: int, width: int, heads: int, kv: int, ff: int, vocab: int, gated: bool
    ) -> None:
        super().__init__()
        self.embed = nn.Embedding(vocab, width)
        self.blocks = nn.ModuleList(
            [Block(width, heads, kv, ff, gated, causal=True) for _ in range(layers)]
        )
        self.norm = nn.LayerNorm(width)
        self.head = nn.Linear(width, vocab, bias=False)

    def forward(self, tokens: Tensor, targets: Tensor) -> Tensor:
        x = self.embed(tokens)
        for block in self.blocks:
            x = block(x)
        return F.cross_entropy(self.head(self.norm(x)).flatten(0, 1), targets.flatten())


class Images(nn.Module):
    """A vision transformer: patches, blocks, the mean, a head."""

    def __init__(self, layers: int, width: int, heads: int, size: int, patch: int) -> None:
        super().__init__()
        self.patches = nn.Conv2d(3, width, patch, patch)
        self.positions = nn.Parameter(torch.zeros((size // patch) ** 2, width))
        self.blocks = nn.Sequential(
            *[Block(width, heads, heads, 4 * width, False, causal=False) for _ in range(layers)]
        )
        self.head = nn.Linear(width, 1000)

    def forward(self, images: Tensor, labels: Tensor) -> Tensor:
        x = self.patches(images).flatten(2).transpose(1, 2) + self.positions
        return F.cross_entropy(self.head(self.blocks(x).mean(1)), labels)


class Recommender(nn.Module):
    """Tables that are larger than the rest, and an MLP."""

    def __init__(self, tables: int, rows: int, width: int, hidden: int) -> None:
        super().__init__()
        self.tables = nn.ModuleList([nn.Embedding(rows, width) for _ in range(tables)])
        self.up, self.middle = nn.Linear(tables * width, hidden), nn.Linear(hidden, hidden)
        self.down = nn.Linear(hidden, 1)

    def forward(self, ids: Tensor, clicked: Tensor) -> Tensor:
        x = torch.cat([table(ids[:, i]) for i, table in enumerate(self.tables)], 1)
        x = self.down(F.relu(self.middle(F.relu(self.up(x)))))
        return F.binary_cross_entropy_with_logits(x[:, 0], clicked)


class Residual(nn.Module):
    def __init__(self, channels: int) -> None:
        super().__init__()
        self.conv1 = nn.Conv2d(channels, channels, 3, padding=1, bias=False)
        self.conv2 = nn.Conv2d(channels, channels, 3, padding=1, bias=False)
        self.norm1, self.norm2 = nn.GroupNorm(8, channels), nn.GroupNorm(8, channels)

    def forward(self, x: Tensor) -> Tensor:
        return F.relu(x + self.norm2(self.conv2(F.relu(self.norm1(self.conv1(x))))))


class Convolutions(nn.Module):
    def __init__(self, channels: int, blocks: int) -> None:
        super().__init__()
        self.stem = nn.Conv2d(3, channels, 7, 4, 3)
        self.blocks = nn.Sequential(*[Residual(channels) for _ in range(blocks)])
        self.head = nn.Linear(channels, 1000)

    def forward(self, images: Tensor, labels: Tensor) -> Tensor:
        return F.cross_entropy(self.head(self.blocks(self.stem(images)).mean((2, 3))), labels)


class Layers(nn.Module):
    """Layers that widen and narrow again."""

    def __init__(self, widths: tuple[int, ...]) -> None:
        super().__init__()
        self.layers = nn.ModuleList([nn.Linear(a, b) for a, b in itertools.pairwise(widths)])

    def forward(self, x: Tensor) -> Tensor:
        for layer in self.layers:
            x = F.gelu(layer(x))
        return x.square().mean()


MEGATRON = {
    "columns": (".q", ".k", ".v", ".gate", ".up"),
    "rows": (".o", ".down"),
}


def _called(model: nn.Module, *batch: Tensor) -> Tensor:
    return model(*batch)


def transformer(name: str, batch: int, length: int, **sizes: Any) -> Case:
    def tokens() -> tuple[Tensor, ...]:
        return tuple(torch.zeros(2, batch, length, dtype=torch.long, device="meta").unbind())

    return Case(name, lambda: Transformer(**sizes), tokens, _called, **MEGATRON)


def images(name: str, build: Callable[[], nn.Module], batch: int, size: int, **roles: Any) -> Case:
    def given() -> tuple[Tensor, ...]:
        labels = torch.zeros(batch, dtype=torch.long, device="meta")
        return torch.zeros(batch, 3, size, size, device="meta"), labels

    return Case(name, build, given, _called, **roles)


def vectors(name: str, widths: tuple[int, ...], batch: int) -> Case:
    columns = tuple(f"layers.{i}" for i in range(0, len(widths) - 1, 2))
    rows = tuple(f"layers.{i}" for i in range(1, len(widths) - 1, 2))
    return Case(
        name,
        lambda: Layers(widths),
        lambda: (torch.zeros(batch, widths[0], device="meta"),),
        _called,
        columns,
        rows,
    )


def recommender(name: str, batch: int, **sizes: int) -> Case:
    def given() -> tuple[Tensor, ...]:
        ids = torch.zeros(batch, sizes["tables"], dtype=torch.long, device="meta")
        return ids, torch.zeros(batch, device="meta")

    return Case(name, lambda: Recommender(**sizes), given, _called, ("up",), ("middle",))


def cases() -> list[Case]:
    """The ten."""
    return [
        transformer("gpt-124m", 32, 1024, layers=12, width=768, heads=12, kv=12, ff=3072,
                    vocab=50304, gated=False),
        transformer("gpt-1b", 16, 1024, layers=24, width=2048, heads=16, kv=16, ff=8192,
                    vocab=50304, gated=False),
        transformer("llama-1b", 8, 1024, layers=16, width=2048, heads=32, kv=8, ff=8192,
                    vocab=128256, gated=True),
        transformer("llama-32-layers", 8, 512, layers=32, width=1024, heads=16, kv=16, ff=2816,
                    vocab=32000, gated=True),
        images("vit-large", lambda: Images(24, 1024, 16, 224, 16), 64, 224, **MEGATRON),
        images("convolutions", lambda: Convolutions(256, 8), 64, 128),
        recommender("recommender", 4096, tables=6, rows=1_000_000, width=64, hidden=2048),
        vectors("wide", (4096, 16384, 4096), 256),
        vectors("deep", (2048,) * 17, 512),
        vectors("funnel", (8192, 4096, 8192, 1024), 64),
    ]  # fmt: skip


def drawn(seed: int) -> Case:
    """A transformer or layers of random sizes."""
    draw = random.Random(seed)
    if draw.random() < 0.4:
        widths = tuple(
            draw.choice((512, 1024, 2048, 4096, 8192)) for _ in range(draw.randint(3, 7))
        )
        return vectors(f"drawn-{seed}", widths, draw.choice((32, 256, 2048)))
    heads = draw.choice((8, 16, 32))
    width = heads * draw.choice((32, 64, 128))
    return transformer(
        f"drawn-{seed}", draw.choice((8, 16, 64)), draw.choice((128, 512, 1024)),
        layers=draw.randint(1, 12), width=width, heads=heads, kv=draw.choice((heads, heads // 4)),
        ff=draw.choice((2, 4)) * width, vocab=draw.choice((4096, 32000)),
        gated=draw.random() < 0.5,
    )  # fmt: skip


def small() -> list[Case]:
    """Three that take seconds, for tests."""
    return [
        transformer("small-gpt", 8, 64, layers=4, width=256, heads=8, kv=8, ff=1024, vocab=1024,
                    gated=False),
        transformer("small-llama", 16, 32, layers=3, width=512, heads=8, kv=4, ff=1024, vocab=512,
                    gated=True),
        vectors("small-layers", (512, 2048, 512, 2048), 32),
    ]  # fmt: skip
