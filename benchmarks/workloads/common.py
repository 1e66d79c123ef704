# SPDX-License-Identifier: Apache-2.0
"""What all workloads share."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn

import torch_spmd as spmd

Spec = tuple[Any, ...]


@dataclass
class Workload:
    """A model on a mesh, and what is needed to train it.

    `inputs` names what a step reads in addition to the parameters and the optimizer's state.
    """

    mesh: spmd.Mesh
    model: nn.Module
    optimizer: torch.optim.Optimizer
    inputs: dict[str, Tensor]
    loss: Callable[[], Tensor]

    def step(self) -> Tensor:
        """Loss, backward, optimizer: one program."""
        value = self.loss()
        value.backward()
        self.optimizer.step()
        self.optimizer.zero_grad()
        return value


class Annotate:
    """Marks activations where the workload is fully annotated, and does nothing otherwise."""

    def __init__(self, mesh: spmd.Mesh, on: bool) -> None:
        self.mesh, self.on = mesh, on

    def __call__(self, x: Tensor, *spec: Any) -> Tensor:
        return spmd.mark_sharding(x, self.mesh, spec) if self.on else x


def tokens(mesh: spmd.Mesh, vocab: int, batch: int, length: int, axis: str | None) -> Tensor:
    """int64 [batch, length], the batch sharded over `axis`."""
    made = torch.randint(vocab, (batch, length)).to("spmd")
    return spmd.mark_sharding(made, mesh, (axis, None))


def mark_parameters(module: nn.Module, mesh: spmd.Mesh, rules: dict[str, Spec]) -> None:
    """Marks each parameter by the first rule whose text is the end of its name; the others are
    replicated."""
    for name, parameter in module.named_parameters():
        spec = next((s for end, s in rules.items() if name.endswith(end)), None)
        spmd.mark_sharding(parameter, mesh, spec or (None,) * parameter.dim())


def largest_dim(shape: Iterable[int], axis: str, size: int) -> Spec:
    """The spec that shards the largest dimension (the last of equals), if the axis divides it."""
    sizes = list(shape)
    spec: list[str | None] = [None] * len(sizes)
    if sizes:
        d = max(range(len(sizes)), key=lambda i: (sizes[i], i))
        if sizes[d] % size == 0:
            spec[d] = axis
    return tuple(spec)
