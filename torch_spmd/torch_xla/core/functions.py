# SPDX-License-Identifier: Apache-2.0
"""Collectives with gradients, of one process, and batch normalization over the whole batch."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, nn


def all_reduce(reduce_type: str, value: Tensor, scale: float = 1.0, groups: Any = None) -> Tensor:
    """The value of the one process, times `scale`."""
    return value * scale


def all_gather(value: Tensor, dim: int = 0) -> Tensor:
    """What all processes have, one after another: of one process, the value itself."""
    return value.clone()


def distributed_mm(w: Tensor, x: Tensor, split: int = 1) -> Tensor:
    """`w @ x`, whose inner dimension one process has whole; `split` pieces of `x` are no matter.

    Errors: ValueError unless the sizes fit.
    """
    if w.size(1) != x.size(0) or x.size(1) % split:
        raise ValueError(
            f"distributed_mm: w is {tuple(w.shape)}, x is {tuple(x.shape)} and split is {split}; w "
            "has as many columns as x has rows, and split divides the columns of x"
        )
    return w @ x


class SyncBatchNorm(nn.Module):
    """Normalizes by the statistics of the whole batch, however it is sharded. The running variance
    is that of the batch, without the correction of `nn.BatchNorm2d`."""

    running_mean: Tensor
    running_var: Tensor

    def __init__(self, num_features: int, eps: float = 1e-5, momentum: float = 0.1) -> None:
        super().__init__()
        self.num_features, self.eps, self.momentum = num_features, eps, momentum
        self.weight = nn.Parameter(torch.ones(num_features))
        self.bias = nn.Parameter(torch.zeros(num_features))
        self.register_buffer("running_mean", torch.zeros(num_features))
        self.register_buffer("running_var", torch.ones(num_features))

    def forward(self, batch: Tensor) -> Tensor:
        """Errors: ValueError for a batch of other dimensions than 2 to 5, or of other features."""
        if not 2 <= batch.dim() <= 5 or batch.size(1) != self.num_features:
            raise ValueError(
                f"SyncBatchNorm({self.num_features}) takes a batch of 2 to 5 dimensions whose "
                f"dimension 1 has {self.num_features} features, not {tuple(batch.shape)}"
            )
        mean, var = self.running_mean, self.running_var
        if self.training:
            others = [d for d in range(batch.dim()) if d != 1]
            mean = batch.mean(others)
            var = (batch * batch).mean(others) - mean.square()
            with torch.no_grad():
                self.running_mean.lerp_(mean.to(self.running_mean.dtype), self.momentum)
                self.running_var.lerp_(var.to(self.running_var.dtype), self.momentum)
        shape = (1, -1) + (1,) * (batch.dim() - 2)
        normal = (batch - mean.view(shape)) / torch.sqrt(var.view(shape) + self.eps)
        return normal * self.weight.view(shape) + self.bias.view(shape)

    def extra_repr(self) -> str:
        return f"{self.num_features}, eps={self.eps}"
