# SPDX-License-Identifier: Apache-2.0
"""A 3-D U-Net of three levels on 64³ voxels, sharded along all three axes of space."""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor, nn

import torch_spmd as spmd
from benchmarks.workloads.common import Annotate, Workload, mark_parameters

INPUTS, CHANNELS, CLASSES = 4, (16, 32, 64), 4


def level(inputs: int, outputs: int) -> nn.Sequential:
    """Twice: convolution over 3³, instance norm, ReLU."""
    layers: list[nn.Module] = []
    for channels in (inputs, outputs):
        layers += [
            nn.Conv3d(channels, outputs, 3, padding=1, bias=False),
            nn.InstanceNorm3d(outputs, affine=True),
            nn.ReLU(),
        ]
    return nn.Sequential(*layers)


class UNet(nn.Module):
    def __init__(self, mark: Annotate) -> None:
        super().__init__()
        self.down = nn.ModuleList(map(level, (INPUTS, *CHANNELS), CHANNELS))
        coarse, fine = CHANNELS[:0:-1], CHANNELS[-2::-1]
        self.grow = nn.ModuleList(
            nn.ConvTranspose3d(c, f, 2, stride=2, bias=False) for c, f in zip(coarse, fine)
        )
        self.up = nn.ModuleList(level(2 * f, f) for f in fine)
        self.head = nn.Conv3d(CHANNELS[0], CLASSES, 1)
        self.mark = mark

    def level_output(self, x: Tensor) -> Tensor:
        return self.mark(x, None, None, "x", "y", "z")

    def forward(self, volume: Tensor, labels: Tensor) -> Tensor:
        x, kept = volume, []
        for i, block in enumerate(self.down):
            x = self.level_output(block(F.max_pool3d(x, 2) if i else x))
            kept.append(x)
        for grow, block, skip in zip(self.grow, self.up, kept[-2::-1]):
            x = torch.cat([skip, self.level_output(grow(x))], dim=1)
            x = self.level_output(block(x))
        return F.cross_entropy(self.head(x), labels)


def build(annotated: bool, batch: int = 2, size: int = 64) -> Workload:
    mesh = spmd.make_mesh((2, 2, 2), ("x", "y", "z"))
    model = UNet(Annotate(mesh, annotated)).to("spmd")
    mark_parameters(model, mesh, {})
    volume = torch.randn(batch, INPUTS, size, size, size).to("spmd")
    labels = torch.randint(CLASSES, (batch, size, size, size)).to("spmd")
    spmd.mark_sharding(volume, mesh, (None, None, "x", "y", "z"))
    spmd.mark_sharding(labels, mesh, (None, "x", "y", "z"))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    read = {"volume": volume, "labels": labels}
    return Workload(mesh, model, optimizer, read, lambda: model(volume, labels))
