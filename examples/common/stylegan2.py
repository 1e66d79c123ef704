# SPDX-License-Identifier: Apache-2.0
"""StyleGAN2 in plain PyTorch. Nothing in this file knows about sharding.

Karras et al., "Analyzing and Improving the Image Quality of StyleGAN", arXiv:1912.04958: the
generator with skip connections and modulated convolutions, the residual discriminator, the lazy
R1 and path-length penalties. `Config(1024)` has the channels of its configuration F.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import torch
import torch.nn.functional as F
from torch import Tensor, nn


@dataclass(frozen=True)
class Config:
    size: int = 1024
    style: int = 512
    most_channels: int = 512
    channels_at_one: int = 32768  # channels · pixels of a side, where that is less
    mapping: int = 8  # layers

    def channels(self, size: int) -> int:
        return min(self.most_channels, self.channels_at_one // size)

    def sizes(self) -> list[int]:
        """4, 8, …, size."""
        return [2**i for i in range(2, self.size.bit_length())]


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

    def __init__(self, config: Config, inputs: int, outputs: int, k: int) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.randn(outputs, inputs, k, k))
        self.bias = nn.Parameter(torch.zeros(outputs))
        self.style = nn.Linear(config.style, inputs)

    def parts(self, style: Tensor) -> tuple[Tensor, Tensor]:
        """The weight, scaled by its number of inputs, and the factors of the input channels."""
        return self.weight / math.sqrt(self.weight[0].numel()), self.style(style) + 1


class Layer(StyledConvolution):
    """As above, scaled to unit variance, then noise, bias and a leaky ReLU; optionally doubles the
    map first."""

    def __init__(self, config: Config, inputs: int, outputs: int, doubles: bool) -> None:
        super().__init__(config, inputs, outputs, 3)
        self.strength = nn.Parameter(torch.zeros(()))
        self.filter = Filter() if doubles else None

    def forward(self, x: Tensor, style: Tensor, noise: Tensor) -> Tensor:
        weight, scale = self.parts(style)
        y = x * scale[:, :, None, None]
        if self.filter is None:
            y = F.conv2d(y, weight, padding=1)
        else:
            y = F.conv_transpose2d(y, weight.transpose(0, 1), stride=2)
            y = self.filter(y, padding=1) * 4
        power = torch.einsum("oikl,bi->bo", weight.square(), scale.square())
        y = y * torch.rsqrt(power + 1e-8)[:, :, None, None]
        return activate(y + noise * self.strength, self.bias)


class ToRGB(StyledConvolution):
    def __init__(self, config: Config, inputs: int) -> None:
        super().__init__(config, inputs, 3, 1)

    def forward(self, x: Tensor, style: Tensor) -> Tensor:
        weight, scale = self.parts(style)
        return F.conv2d(x * scale[:, :, None, None], weight) + self.bias[:, None, None]


class Generator(nn.Module):
    """Images [batch, 3, size, size] from styles, which `mapping` makes of [batch, style]."""

    def __init__(self, config: Config) -> None:
        super().__init__()
        sizes, channels = config.sizes(), config.channels
        layers = [nn.Linear(config.style, config.style) for _ in range(config.mapping)]
        self.layers = nn.ModuleList(layers)
        self.start = nn.Parameter(torch.randn(channels(4), 4, 4))
        self.grow = nn.ModuleList(
            Layer(config, channels(s // 2), channels(s), doubles=True) for s in sizes[1:]
        )
        self.same = nn.ModuleList(
            Layer(config, channels(s), channels(s), doubles=False) for s in sizes
        )
        self.rgb = nn.ModuleList(ToRGB(config, channels(s)) for s in sizes)
        self.filter = Filter()

    def mapping(self, z: Tensor) -> Tensor:
        style = z * torch.rsqrt(z.square().mean(1, keepdim=True) + 1e-8)
        for layer in self.layers:
            style = F.leaky_relu(layer(style), 0.2)
        return style

    def forward(self, style: Tensor, noise: list[list[Tensor]]) -> Tensor:
        """`noise` has one map [batch, 1, s, s] for the first size and two for every other."""
        x = self.start.expand(style.shape[0], -1, -1, -1)
        x = self.same[0](x, style, noise[0][0])
        image = self.rgb[0](x, style)
        for grow, same, rgb, maps in zip(self.grow, self.same[1:], self.rgb[1:], noise[1:]):
            x = same(grow(x, style, maps[0]), style, maps[1])
            image = self.filter.twice(image) + rgb(x, style)
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

    def __init__(self, inputs: int, outputs: int) -> None:
        super().__init__()
        self.same = Convolution(inputs, inputs, 3)
        self.down = Convolution(inputs, outputs, 3)
        self.skip = nn.Conv2d(inputs, outputs, 1, bias=False)
        self.filter = Filter()

    def forward(self, x: Tensor) -> Tensor:
        y = self.down(self.filter(self.same(x, padding=1), padding=2), padding=0, stride=2)
        skip = self.skip(self.filter(x, padding=1, stride=2))
        return (y + skip) * math.sqrt(0.5)


class Discriminator(nn.Module):
    """Scores [batch] of images."""

    def __init__(self, config: Config) -> None:
        super().__init__()
        channels, sizes = config.channels, config.sizes()
        self.rgb = Convolution(3, channels(sizes[-1]), 1)
        self.blocks = nn.ModuleList(Halve(channels(s), channels(s // 2)) for s in sizes[:0:-1])
        last = channels(4)
        self.last = Convolution(last + 1, last, 3)
        self.hidden, self.score = nn.Linear(last * 16, last), nn.Linear(last, 1)

    def forward(self, image: Tensor) -> Tensor:
        x = self.rgb(image, padding=0)
        for block in self.blocks:
            x = block(x)
        spread = torch.sqrt((x - x.mean(0)).square().mean(0) + 1e-8).mean()
        x = torch.cat([x, spread.expand(x.shape[0], 1, 4, 4)], dim=1)
        x = self.last(x, padding=1).flatten(1)
        return self.score(F.leaky_relu(self.hidden(x), 0.2))[:, 0]


def discriminator_loss(judge: Discriminator, real: Tensor, fake: Tensor, r1: float) -> Tensor:
    """With `r1` times half the squared slope of the scores at real images, a gradient of a
    gradient."""
    image = real.detach().requires_grad_(r1 > 0)
    score = judge(image)
    loss = (F.softplus(judge(fake.detach())) + F.softplus(-score)).mean()
    if r1 > 0:
        (slope,) = torch.autograd.grad(score.sum(), image, create_graph=True)
        loss = loss + r1 / 2 * slope.square().sum((1, 2, 3)).mean()
    return loss


def path_length(image: Tensor, style: Tensor, noise: Tensor) -> Tensor:
    """How far images move where styles do, [batch]: `noise` is like the images."""
    scaled = noise / math.sqrt(image.shape[2] * image.shape[3])
    (slope,) = torch.autograd.grad((image * scaled).sum(), style, create_graph=True)
    return slope.square().sum(1).sqrt()
