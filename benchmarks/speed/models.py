# SPDX-License-Identifier: Apache-2.0
"""Training and inference steps of the same model on either device.

torch_spmd is imported where a step is made for it: eager's on a GPU run in a process without it."""

from __future__ import annotations

import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from benchmarks.speed import gpt2
from benchmarks.speed.measure import Step

sys.path.insert(0, str(Path(__file__).resolve().parents[2] / "examples"))

import itertools

from common.gpt import GPT, GPTConfig

SMALL = GPTConfig(block=256, layers=6, width=384, heads=8, dropout=0.0)
DEEP = GPTConfig(vocab_size=1024, block=64, layers=12, width=96, heads=12, dropout=0.0)
Axes = dict[str, int]


def training(model: nn.Module, loss: Callable[[], Tensor], *, fused: bool = False) -> Step:
    # PyTorch takes fused=False for "loop over the parameters", None for its default.
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-4, fused=fused or None)

    def step() -> None:
        value = loss()
        value.backward()
        optimizer.step()
        optimizer.zero_grad()
        if plans():
            sys.modules["torch_spmd"].sync(wait=True)
        else:
            value.detach().cpu()

    return step


def plans() -> bool:
    """Whether the device computes nothing."""
    spmd = sys.modules.get("torch_spmd")
    return spmd is not None and ":plan" in spmd.config.describe_devices()


def gpt_step(
    device: str,
    config: GPTConfig = SMALL,
    batch: int = 8,
    length: int = 256,
    axes: Axes | None = None,
    plan: str = "dp",
) -> Step:
    torch.manual_seed(0)
    model = GPT(config).to(device)
    tokens = torch.randint(config.vocab_size, (batch, length)).to(device)
    if device == "spmd" and axes:
        from common.strategies import strategy

        import torch_spmd as spmd

        mesh = spmd.make_mesh(tuple(axes.values()), tuple(axes))
        chosen = strategy(plan, mesh.axis_names)
        spmd.shard_module(model, mesh, chosen.rules)
        spmd.mark_sharding(tokens, mesh, chosen.inputs)
    return training(model, lambda: model(tokens, tokens))


def gpt2_step(device: str, fused: bool) -> Step:
    torch.manual_seed(0)
    model = gpt2.GPT2().to(device)
    tokens = torch.randint(gpt2.VOCAB, (2, gpt2.LENGTH)).to(device)
    return training(model, lambda: model(tokens, tokens), fused=fused)


def mlp_step(device: str) -> Step:
    """Two blocks of 1024 → 4096 → 1024, batch 64, on 16 × 4."""
    torch.manual_seed(0)
    layers = [nn.Linear(*s, bias=False) for s in ((1024, 4096), (4096, 1024)) * 2]
    model = nn.Sequential(layers[0], nn.ReLU(), layers[1], layers[2], nn.ReLU(), layers[3])
    x = torch.randn(64, 1024)
    model, x = model.to(device), x.to(device)
    if device == "spmd":
        import torch_spmd as spmd

        mesh = spmd.make_mesh((16, 4), ("data", "model"))
        for k, layer in enumerate(layers):
            spec = ("model", None) if k % 2 == 0 else (None, "model")
            spmd.mark_sharding(layer.weight, mesh, spec)
        spmd.mark_sharding(x, mesh, ("data", None))
    return training(model, lambda: (model(x) - x).square().mean())


class Residual(nn.Module):
    def __init__(self, inputs: int, outputs: int, stride: int) -> None:
        super().__init__()
        self.body = nn.Sequential(
            nn.Conv2d(inputs, outputs, 3, stride, 1, bias=False),
            nn.BatchNorm2d(outputs),
            nn.ReLU(),
            nn.Conv2d(outputs, outputs, 3, 1, 1, bias=False),
            nn.BatchNorm2d(outputs),
        )
        self.short: nn.Module = nn.Identity()
        if stride != 1 or inputs != outputs:
            self.short = nn.Sequential(
                nn.Conv2d(inputs, outputs, 1, stride, bias=False), nn.BatchNorm2d(outputs)
            )

    def forward(self, x: Tensor) -> Tensor:
        return F.relu(self.body(x) + self.short(x))


def resnet18_step(device: str) -> Step:
    """Batch 16 of 64 × 64, sharded two ways over the batch and four ways over the height."""
    torch.manual_seed(0)
    widths = (64, 64, 64, 128, 128, 256, 256, 512, 512)
    blocks = [Residual(a, b, 2 if b > a else 1) for a, b in itertools.pairwise(widths)]
    model = nn.Sequential(
        nn.Conv2d(3, 64, 7, 2, 3, bias=False),
        nn.BatchNorm2d(64),
        nn.ReLU(),
        nn.MaxPool2d(3, 2, 1),
        *blocks,
        nn.AdaptiveAvgPool2d(1),
        nn.Flatten(),
        nn.Linear(512, 10),
    ).to(device)
    images, labels = torch.randn(16, 3, 64, 64).to(device), torch.randint(10, (16,)).to(device)
    if device == "spmd":
        import torch_spmd as spmd

        mesh = spmd.make_mesh((2, 4), ("data", "spatial"))
        spmd.mark_sharding(images, mesh, ("data", None, "spatial", None))
        spmd.mark_sharding(labels, mesh, ("data",))
    return training(model, lambda: F.cross_entropy(model(images), labels))


class Decoder:
    """One token at a time over a cache of fixed size."""

    def __init__(self, model: GPT, device: str, mesh: Any) -> None:
        self.model, self.device = model, device
        config = model.config
        shape = (config.layers, 2, 1, config.heads, config.block, config.width // config.heads)
        self.cache = [torch.zeros(shape[1:]).to(device) for _ in range(config.layers)]
        self.places = torch.arange(config.block).to(device)
        self.token = torch.zeros(1, 1, dtype=torch.long).to(device)
        if mesh is not None:
            import torch_spmd as spmd

            for cache in self.cache:
                spmd.mark_sharding(cache, mesh, (None, None, mesh.axis_names[0], None, None))

    @torch.no_grad()
    def __call__(self, at: int) -> Tensor:
        model, heads = self.model, self.model.config.heads
        place = torch.tensor([at]).to(self.device)
        seen = (self.places <= place).view(1, 1, 1, -1)
        x = model.tokens(self.token) + model.positions(place)
        for block, cache in zip(model.blocks, self.cache):
            a, y = block.attention, block.norm1(x)
            q, k, v = (layer(y).view(1, 1, heads, -1).transpose(1, 2) for layer in (a.q, a.k, a.v))
            cache[0].index_copy_(2, place, k)
            cache[1].index_copy_(2, place, v)
            mixed = F.scaled_dot_product_attention(q, cache[0], cache[1], attn_mask=seen)
            x = x + a.out(mixed.transpose(1, 2).reshape(1, 1, -1))
            x = x + block.mlp(block.norm2(x))
        result: Tensor = model.head(model.norm(x)).argmax(-1)
        return result


def decode_steps(device: str, tokens: int = 16) -> Step:
    """`tokens` tokens, each of which the host reads before the next one."""
    torch.manual_seed(0)
    model = GPT(SMALL).to(device).eval()
    mesh: Any = None
    if device == "spmd":
        from common.strategies import strategy

        import torch_spmd as spmd

        mesh = spmd.make_mesh((8,), ("model",))
        spmd.shard_module(model, mesh, strategy("tp", mesh.axis_names).rules)
    decoder = Decoder(model, device, mesh)

    def step() -> None:
        for at in range(tokens):
            decoder.token = decoder(at)
            decoder.token.cpu()

    return step
