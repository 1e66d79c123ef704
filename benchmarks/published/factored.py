# SPDX-License-Identifier: Apache-2.0
"""Adafactor's update, of which the second moments of a matrix are kept by row and by column.

Shazeer and Stern, "Adafactor", arXiv:1804.04235, without the clipping and the relative step size,
which read single numbers.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import torch
from torch import Tensor


class Factored(torch.optim.Optimizer):
    def __init__(self, params: Iterable[Tensor], lr: float = 1e-3, beta: float = 0.99) -> None:
        super().__init__(params, {"lr": lr, "beta": beta})
        for group in self.param_groups:
            for p in group["params"]:
                self.state[p] = {
                    f"mean_over_{d}": torch.rand_like(p.sum(d) if p.dim() > 1 else p)
                    for d in range(p.dim())
                }

    @torch.no_grad()
    def step(self, closure: Any = None) -> None:
        for group in self.param_groups:
            for p in group["params"]:
                if p.grad is not None:
                    self.update(p, p.grad, group["lr"], group["beta"])

    def update(self, p: Tensor, grad: Tensor, lr: float, beta: float) -> None:
        square = grad.float().square() + 1e-30
        means = []
        for d in range(p.dim()):
            mean = self.state[p][f"mean_over_{d}"]
            new = square.mean(d) if p.dim() > 1 else square
            mean.mul_(beta).add_(new.to(mean.dtype), alpha=1 - beta)
            means.append(mean.float())
        if p.dim() == 2:
            columns, rows = means
            scale = rows[:, None] / rows.mean() * columns[None, :]
        else:
            scale = means[0]
        p.sub_(lr * grad * scale.rsqrt().to(grad.dtype))
