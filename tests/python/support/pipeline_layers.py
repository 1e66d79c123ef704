# SPDX-License-Identifier: Apache-2.0
"""Equal layers that pipelines are tested with."""

import torch
from torch import nn


class Layer(nn.Module):
    """A pre-norm feed-forward layer with a buffer."""

    def __init__(self, width=6):
        super().__init__()
        self.norm = nn.LayerNorm(width)
        self.up, self.down = nn.Linear(width, 2 * width), nn.Linear(2 * width, width)
        self.register_buffer("scale", torch.rand(()) + 0.5)

    def forward(self, x):
        return x + self.scale * self.down(torch.tanh(self.up(self.norm(x))))


class Matrix(nn.Module):
    """One product, so that FLOPs can be counted."""

    def __init__(self, width):
        super().__init__()
        self.weight = nn.Parameter(torch.randn(width, width) / width**0.5)

    def forward(self, x):
        return torch.tanh(x @ self.weight)
