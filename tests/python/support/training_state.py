# SPDX-License-Identifier: Apache-2.0
"""A small training run whose whole state can be saved: dropout, a schedule, data from PyTorch's
random numbers."""

from __future__ import annotations

from typing import Any

import torch
from torch import nn

import torch_spmd as spmd
from torch_spmd import Mesh


class Run:
    """A model on a mesh, sharded over its last axis, the batch over its first."""

    def __init__(self, mesh: Mesh, optimizer: str = "AdamW", seed: int = 0) -> None:
        torch.manual_seed(seed)
        self.mesh = mesh
        layers = (nn.Linear(12, 30), nn.GELU(), nn.Dropout(0.1), nn.Linear(30, 7))
        self.model = nn.Sequential(*layers).to("spmd")
        axis = mesh.axis_names[-1]
        rules = {"0.weight": (axis, None), "0.bias": (axis,), "3.weight": (None, axis)}
        spmd.shard_module(self.model, mesh, rules)
        options: dict[str, Any] = {"momentum": 0.9} if optimizer in ("SGD", "RMSprop") else {}
        kind = getattr(torch.optim, optimizer)
        self.optimizer = kind(self.model.parameters(), lr=1e-2, **options)
        self.schedule = torch.optim.lr_scheduler.CosineAnnealingLR(self.optimizer, 20)

    def tree(self) -> dict[str, Any]:
        return {
            "model": self.model,
            "optimizer": self.optimizer,
            "schedule": self.schedule,
            "random": spmd.checkpoint.RandomState(),
            "step": 0,
        }

    def losses(self, steps: int) -> list[float]:
        found = []
        for _ in range(steps):
            x, y = torch.randn(16, 12).to("spmd"), torch.randn(16, 7).to("spmd")
            spmd.mark_sharding((x, y), self.mesh, (self.mesh.axis_names[0], None))
            loss = (self.model(x) - y).square().mean()
            loss.backward()
            self.optimizer.step()
            self.optimizer.zero_grad()
            self.schedule.step()
            found.append(loss.item())
        return found
