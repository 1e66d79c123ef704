# SPDX-License-Identifier: Apache-2.0
"""Small training runs whose losses are compared: on plain CPU, unsharded, and sharded."""

from __future__ import annotations

from dataclasses import dataclass

import torch
import torch.nn.functional as F
from common.gpt import GPT, GPTConfig
from common.resnet import ResNet
from common.strategies import strategy

import torch_spmd as spmd

# 2d needs two axes; the others use all axes as one.
STRATEGIES = ("dp", "tp", "fsdp", "2d")
MESHES = ((8,), (2, 4), (4, 2), (2, 2, 2), (3,), (5,))
AXES = ("x", "y", "z")


def mesh_of(shape: tuple[int, ...]) -> spmd.Mesh:
    return spmd.make_mesh(shape, AXES[: len(shape)])


def combinations(meshes=MESHES, strategies=STRATEGIES):
    """(mesh shape, strategy) pairs that make sense."""
    return [(m, s) for m in meshes for s in strategies if s != "2d" or len(m) > 1]


def label(value) -> str:
    return "x".join(map(str, value)) if isinstance(value, tuple) else str(value)


@dataclass(frozen=True)
class Job:
    """A training run of the small GPT: 2 layers, 64 wide."""

    optimizer: str = "sgd"
    steps: int = 20
    dtype: torch.dtype = torch.float32
    dropout: float = 0.0
    batch: int = 8
    length: int = 16
    vocab: int = 64
    heads: int = 8

    def model(self) -> GPT:
        torch.manual_seed(1)
        config = GPTConfig(
            vocab_size=self.vocab,
            block=self.length,
            layers=2,
            width=64,
            heads=self.heads,
            dropout=self.dropout,
        )
        return GPT(config).to(self.dtype)

    def batches(self):
        generator = torch.Generator().manual_seed(2)
        for _ in range(self.steps):
            text = torch.randint(self.vocab, (self.batch, self.length + 1), generator=generator)
            text = (text.cumsum(1) // 7) % self.vocab  # something to learn
            yield text[:, :-1].contiguous(), text[:, 1:].contiguous()

    def make_optimizer(self, model: GPT) -> torch.optim.Optimizer:
        if self.optimizer == "sgd":
            return torch.optim.SGD(model.parameters(), lr=0.1)
        return torch.optim.AdamW(model.parameters(), lr=3e-3, weight_decay=0.1)


def gpt_losses(job: Job, device: str, mesh: spmd.Mesh | None = None, plan: str = "dp"):
    """The loss of each step."""
    model = job.model().to(device)
    chosen = None
    if mesh is not None:
        chosen = strategy(plan, mesh.axis_names)
        spmd.shard_module(model, mesh, chosen.rules)
    optimizer = job.make_optimizer(model)
    torch.manual_seed(3)  # dropout
    losses = []
    for inputs, targets in job.batches():
        inputs, targets = inputs.to(device), targets.to(device)
        if mesh is not None:
            spmd.mark_sharding(inputs, mesh, chosen.inputs)
            spmd.mark_sharding(targets, mesh, chosen.inputs)
        loss = model(inputs, targets)
        loss.backward()
        torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        optimizer.zero_grad()
        losses.append(loss.item())
    return losses


def cnn_losses(device: str, mesh: spmd.Mesh | None = None, *, steps=20, dtype=torch.float32):
    """The small ResNet on random images, sharded over batch (first axis) and height (the
    others)."""
    torch.manual_seed(1)
    model = ResNet(widths=(4, 8), classes=5).to(dtype).to(device)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.05, momentum=0.9)
    generator = torch.Generator().manual_seed(2)
    losses = []
    for _ in range(steps):
        images = torch.randn(8, 1, 16, 12, generator=generator, dtype=torch.float64).to(dtype)
        labels = torch.randint(5, (8,), generator=generator)
        images, labels = images.to(device), labels.to(device)
        if mesh is not None:
            batch, *rows = mesh.axis_names
            spmd.mark_sharding(images, mesh, (batch, None, tuple(rows), None))
            spmd.mark_sharding(labels, mesh, (batch,))
        loss = F.cross_entropy(model(images), labels)
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()
        losses.append(loss.item())
    return losses
