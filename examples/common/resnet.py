# SPDX-License-Identifier: Apache-2.0
"""A small ResNet in plain PyTorch. Nothing in this file knows about sharding."""

from __future__ import annotations

import torch.nn.functional as F
from torch import Tensor, nn


class ResidualBlock(nn.Module):
    """Two 3×3 convolutions with batch norm beside a short cut; `stride` 2 halves the image."""

    def __init__(self, inputs: int, outputs: int, stride: int) -> None:
        super().__init__()
        self.conv1 = nn.Conv2d(inputs, outputs, 3, stride=stride, padding=1, bias=False)
        self.norm1 = nn.BatchNorm2d(outputs)
        self.conv2 = nn.Conv2d(outputs, outputs, 3, padding=1, bias=False)
        self.norm2 = nn.BatchNorm2d(outputs)
        self.short: nn.Module = nn.Identity()
        if stride != 1 or inputs != outputs:
            self.short = nn.Sequential(
                nn.Conv2d(inputs, outputs, 1, stride=stride, bias=False), nn.BatchNorm2d(outputs)
            )

    def forward(self, x: Tensor) -> Tensor:
        y = F.relu(self.norm1(self.conv1(x)))
        y = self.norm2(self.conv2(y))
        return F.relu(y + self.short(x))


class ResNet(nn.Module):
    """Classifies float [batch, 1, size, size] into `classes`; each stage but the first halves."""

    def __init__(self, widths: tuple[int, ...] = (16, 32, 64), classes: int = 10) -> None:
        super().__init__()
        self.stem = nn.Conv2d(1, widths[0], 3, padding=1, bias=False)
        self.norm = nn.BatchNorm2d(widths[0])
        inputs = (widths[0], *widths[:-1])
        self.stages = nn.Sequential(
            *(
                ResidualBlock(before, after, stride=1 if stage == 0 else 2)
                for stage, (before, after) in enumerate(zip(inputs, widths))
            )
        )
        self.head = nn.Linear(widths[-1], classes)

    def forward(self, x: Tensor) -> Tensor:
        x = self.stages(F.relu(self.norm(self.stem(x))))
        logits: Tensor = self.head(x.mean((2, 3)))
        return logits
