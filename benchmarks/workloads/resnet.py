# SPDX-License-Identifier: Apache-2.0
"""ResNet-50 (v1.5) on 224 × 224, sharded over the batch and over image height."""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor, nn

import torch_spmd as spmd
from benchmarks.workloads.common import Annotate, Workload, mark_parameters


class Convolution(nn.Module):
    """Convolution, batch norm over the batch's own statistics, and optionally a ReLU."""

    def __init__(self, k: int, inputs: int, outputs: int, stride: int = 1) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.randn(outputs, inputs, k, k) * 0.05)
        self.norm = nn.BatchNorm2d(outputs, track_running_stats=False)
        self.stride, self.padding = stride, (k - 1) // 2

    def forward(self, x: Tensor, relu: bool = True) -> Tensor:
        y = self.norm(F.conv2d(x, self.weight, stride=self.stride, padding=self.padding))
        return F.relu(y) if relu else y


class Bottleneck(nn.Module):
    def __init__(self, inputs: int, width: int, stride: int, project: bool) -> None:
        super().__init__()
        self.reduce = Convolution(1, inputs, width)
        self.spatial = Convolution(3, width, width, stride)
        self.expand = Convolution(1, width, 4 * width)
        self.skip = Convolution(1, inputs, 4 * width, stride) if project else None

    def forward(self, x: Tensor) -> Tensor:
        y = self.expand(self.spatial(self.reduce(x)), relu=False)
        return F.relu(y + (x if self.skip is None else self.skip(x, relu=False)))


class ResNet50(nn.Module):
    def __init__(self, mark: Annotate) -> None:
        super().__init__()
        self.stem = Convolution(7, 3, 64, 2)
        blocks, inputs = [], 64
        for stage, (width, repeats) in enumerate(zip((64, 128, 256, 512), (3, 4, 6, 3))):
            for i in range(repeats):
                stride = 2 if i == 0 and stage > 0 else 1
                blocks.append(Bottleneck(inputs, width, stride, i == 0))
                inputs = 4 * width
        self.blocks = nn.ModuleList(blocks)
        self.head = nn.Linear(2048, 1000)
        self.mark = mark

    def forward(self, images: Tensor, labels: Tensor) -> Tensor:
        x = F.max_pool2d(self.stem(images), 3, 2, 1)
        x = self.mark(x, "data", None, "spatial", None)
        for block in self.blocks:
            x = self.mark(block(x), "data", None, "spatial", None)
        return F.cross_entropy(self.head(x.mean((2, 3))), labels)


def build(annotated: bool, batch: int = 8, size: int = 224) -> Workload:
    mesh = spmd.make_mesh((2, 4), ("data", "spatial"))
    model = ResNet50(Annotate(mesh, annotated)).to("spmd")
    mark_parameters(model, mesh, {})
    images = torch.randn(batch, 3, size, size).to("spmd")
    labels = torch.randint(1000, (batch,)).to("spmd")
    spmd.mark_sharding(images, mesh, ("data", None, "spatial", None))
    spmd.mark_sharding(labels, mesh, ("data",))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    read = {"images": images, "labels": labels}
    return Workload(mesh, model, optimizer, read, lambda: model(images, labels))
