# SPDX-License-Identifier: Apache-2.0
"""StyleGAN2 at 1024²: a step of the generator, and one of the discriminator with its R1 penalty.

Image height is sharded. The penalty is a gradient of a gradient; the filters (1, 3, 3, 1) give maps
of 2ⁿ + 1 rows, which no mesh divides.
"""

from __future__ import annotations

import math

import torch
import torch.nn.functional as F
from torch import Tensor, nn

import torch_spmd as spmd
from benchmarks.workloads.common import Annotate, Workload, mark_parameters

STYLE, BATCH, DEVICES = 64, 4, 8


def channels(size: int) -> int:
    return min(64, 4096 // size)


def sizes(largest: int) -> list[int]:
    """4, 8, …, largest."""
    return [2**i for i in range(2, largest.bit_length())]


def activate(x: Tensor, bias: Tensor) -> Tensor:
    return F.leaky_relu(x + bias[:, None, None], 0.2) * math.sqrt(2)


class Filter(nn.Module):
    """Smooths every channel with (1, 3, 3, 1)."""

    kernel: Tensor

    def __init__(self) -> None:
        super().__init__()
        line = torch.tensor([1.0, 3.0, 3.0, 1.0]) / 8
        self.register_buffer("kernel", torch.outer(line, line))

    def weight(self, x: Tensor) -> Tensor:
        return self.kernel.expand(x.shape[1], 1, 4, 4)

    def forward(self, x: Tensor, padding: int, stride: int = 1) -> Tensor:
        return F.conv2d(x, self.weight(x), stride=stride, padding=padding, groups=x.shape[1])

    def twice(self, x: Tensor) -> Tensor:
        """Twice as many rows and columns."""
        weight = self.weight(x) * 4
        return F.conv_transpose2d(x, weight, stride=2, padding=1, groups=x.shape[1])


class StyledConvolution(nn.Module):
    """A convolution whose input channels are scaled by the style."""

    def __init__(self, inputs: int, outputs: int, k: int) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.randn(outputs, inputs, k, k))
        self.bias = nn.Parameter(torch.zeros(outputs))
        self.style = nn.Linear(STYLE, inputs)

    def parts(self, style: Tensor) -> tuple[Tensor, Tensor]:
        """The weight, scaled by its number of inputs, and the factors of the input channels."""
        return self.weight / math.sqrt(self.weight[0].numel()), self.style(style) + 1


class Layer(StyledConvolution):
    """As above, scaled to unit variance, then noise, bias and a leaky ReLU; optionally doubles the
    map first."""

    def __init__(self, inputs: int, outputs: int, doubles: bool) -> None:
        super().__init__(inputs, outputs, 3)
        self.strength = nn.Parameter(torch.zeros(()))
        self.filter = Filter() if doubles else None

    def forward(self, x: Tensor, style: Tensor, noise: Tensor, mark: Annotate) -> Tensor:
        weight, scale = self.parts(style)
        y = x * scale[:, :, None, None]
        if self.filter is None:
            y = F.conv2d(y, weight, padding=1)
        else:
            y = F.conv_transpose2d(y, weight.transpose(0, 1), stride=2)
            y = self.filter(rows(mark, y), padding=1) * 4
        power = torch.einsum("oikl,bi->bo", weight.square(), scale.square())
        y = y * torch.rsqrt(power + 1e-8)[:, :, None, None]
        return rows(mark, activate(y + noise * self.strength, self.bias))


class ToRGB(StyledConvolution):
    def __init__(self, inputs: int) -> None:
        super().__init__(inputs, 3, 1)

    def forward(self, x: Tensor, style: Tensor, mark: Annotate) -> Tensor:
        weight, scale = self.parts(style)
        return rows(mark, F.conv2d(x * scale[:, :, None, None], weight) + self.bias[:, None, None])


def rows(mark: Annotate, x: Tensor) -> Tensor:
    """Shards the rows of maps that have at least 32."""
    return mark(x, None, None, "spatial", None) if x.shape[2] >= 32 else x


class Generator(nn.Module):
    def __init__(self, size: int, mark: Annotate) -> None:
        super().__init__()
        self.mapping = nn.ModuleList(nn.Linear(STYLE, STYLE) for _ in range(2))
        self.start = nn.Parameter(torch.randn(channels(4), 4, 4))
        self.grow = nn.ModuleList(
            Layer(channels(s // 2), channels(s), doubles=True) for s in sizes(size)[1:]
        )
        self.same = nn.ModuleList(
            Layer(channels(s), channels(s), doubles=False) for s in sizes(size)
        )
        self.rgb = nn.ModuleList(ToRGB(channels(s)) for s in sizes(size))
        self.filter = Filter()
        self.mark = mark

    def forward(self, z: Tensor, noise: list[list[Tensor]]) -> Tensor:
        """`noise` has one map for the first size and two for every other."""
        style = z
        for layer in self.mapping:
            style = F.leaky_relu(layer(style), 0.2)
        x = self.start.expand(z.shape[0], -1, -1, -1)
        x = self.same[0](x, style, noise[0][0], self.mark)
        image = self.rgb[0](x, style, self.mark)
        for grow, same, rgb, maps in zip(self.grow, self.same[1:], self.rgb[1:], noise[1:]):
            x = grow(x, style, maps[0], self.mark)
            x = same(x, style, maps[1], self.mark)
            image = rows(self.mark, self.filter.twice(image) + rgb(x, style, self.mark))
        return image


class Convolution(nn.Module):
    def __init__(self, inputs: int, outputs: int, k: int) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.randn(outputs, inputs, k, k) / math.sqrt(inputs * k * k))
        self.bias = nn.Parameter(torch.zeros(outputs))

    def forward(self, x: Tensor, padding: int, stride: int = 1) -> Tensor:
        return activate(F.conv2d(x, self.weight, stride=stride, padding=padding), self.bias)


class Halve(nn.Module):
    """A residual block to half as many rows and columns."""

    def __init__(self, size: int, mark: Annotate) -> None:
        super().__init__()
        inputs, outputs = channels(size), channels(size // 2)
        self.same = Convolution(inputs, inputs, 3)
        self.down = Convolution(inputs, outputs, 3)
        self.skip = nn.Conv2d(inputs, outputs, 1, bias=False)
        self.filter = Filter()
        self.mark = mark

    def forward(self, x: Tensor) -> Tensor:
        y = rows(self.mark, self.same(x, padding=1))
        y = rows(self.mark, self.down(self.filter(y, padding=2), padding=0, stride=2))
        skip = self.skip(self.filter(x, padding=1, stride=2))
        return rows(self.mark, (y + skip) * math.sqrt(0.5))


class Discriminator(nn.Module):
    def __init__(self, size: int, mark: Annotate) -> None:
        super().__init__()
        self.rgb = Convolution(3, channels(size), 1)
        self.blocks = nn.ModuleList(Halve(s, mark) for s in sizes(size)[:0:-1])
        self.last = Convolution(channels(4) + 1, 64, 3)
        self.hidden, self.score = nn.Linear(64 * 16, 64), nn.Linear(64, 1)
        self.mark = mark

    def forward(self, image: Tensor) -> Tensor:
        x = rows(self.mark, self.rgb(image, padding=0))
        for block in self.blocks:
            x = block(x)
        spread = torch.sqrt((x - x.mean(0)).square().mean(0) + 1e-8).mean()
        x = torch.cat([x, spread.expand(x.shape[0], 1, 4, 4)], dim=1)
        x = self.last(x, padding=1).flatten(1)
        return self.score(F.leaky_relu(self.hidden(x), 0.2))[:, 0]


def image_rows(mesh: spmd.Mesh, *shape: int) -> Tensor:
    """Random maps; their rows are sharded if there are enough."""
    made = torch.randn(shape).to("spmd")
    axis = "spatial" if shape[2] >= DEVICES else None
    return spmd.mark_sharding(made, mesh, (None, None, axis, None))


def generator(annotated: bool, size: int = 1024) -> Workload:
    mesh = spmd.make_mesh((DEVICES,), ("spatial",))
    mark = Annotate(mesh, annotated)
    model, judge = Generator(size, mark).to("spmd"), Discriminator(size, mark).to("spmd")
    mark_parameters(model, mesh, {})
    mark_parameters(judge, mesh, {})
    judge.requires_grad_(False)
    z = spmd.mark_sharding(torch.randn(BATCH, STYLE).to("spmd"), mesh, (None, None))
    noise = [
        [image_rows(mesh, BATCH, 1, s, s) for _ in range(1 if s == 4 else 2)] for s in sizes(size)
    ]

    def loss() -> Tensor:
        return F.softplus(-judge(model(z, noise))).mean()

    read = {f"noise.{i}.{j}": x for i, maps in enumerate(noise) for j, x in enumerate(maps)}
    read |= {f"judge.{name}": parameter for name, parameter in judge.named_parameters()}
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    return Workload(mesh, model, optimizer, {"z": z} | read, loss)


def discriminator(annotated: bool, size: int = 1024) -> Workload:
    mesh = spmd.make_mesh((DEVICES,), ("spatial",))
    model = Discriminator(size, Annotate(mesh, annotated)).to("spmd")
    mark_parameters(model, mesh, {})
    real, fake = (image_rows(mesh, BATCH, 3, size, size) for _ in range(2))

    def loss() -> Tensor:
        image = real.detach().requires_grad_()
        score = model(image)
        (slope,) = torch.autograd.grad(score.sum(), image, create_graph=True)
        penalty = slope.square().sum((1, 2, 3)).mean()
        return (F.softplus(model(fake)) + F.softplus(-score)).mean() + 5 * penalty

    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    return Workload(mesh, model, optimizer, {"real": real, "fake": fake}, loss)
