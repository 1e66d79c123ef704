# SPDX-License-Identifier: Apache-2.0
"""A direct call of an op: on the CPU, and on `spmd` with sharding."""

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import torch
from op_outcomes import on_host
from op_samples import Cut, tensors_of
from torch.utils._pytree import tree_map


@dataclass(frozen=True)
class Call:
    """An op of `aten` by name, or a function, and its arguments; `dim` is the one that is cut.

    Of several calls of an op, a name tells one apart.
    """

    op: str | Callable[..., Any]
    args: tuple[Any, ...]
    kwargs: dict[str, Any] = field(default_factory=dict)
    dim: int = 0
    name: str = ""

    def __str__(self):
        if self.name:
            return self.name
        return self.op if isinstance(self.op, str) else self.op.__name__

    def function(self):
        if not isinstance(self.op, str):
            return self.op
        name, _, overload = self.op.partition(".")
        return getattr(getattr(torch.ops.aten, name), overload or "default")

    def run(self, device, cut=None):
        """Results, and the arguments after the call, on the host."""
        args, kwargs = tree_map(
            lambda leaf: leaf.clone().to(device) if isinstance(leaf, torch.Tensor) else leaf,
            (self.args, self.kwargs),
        )
        tensors = tensors_of((args, kwargs))
        if cut is not None:
            cut.mark(tensors)
        return on_host(self.function()(*args, **kwargs)) + on_host(tensors)

    def cuts(self):
        """The dimension of the first tensor that has it, and of all, over two devices and three."""
        every = [self._cut(t) for t in tensors_of((self.args, self.kwargs))]
        first = next((i for i, spec in enumerate(every) if spec is not None), len(every))
        for size in (2, 3):
            yield Cut((size,), tuple(every[: first + 1]))
            if any(every[first + 1 :]):
                yield Cut((size,), tuple(every))

    def _cut(self, t):
        if t.dim() <= self.dim or t.shape[self.dim] == 1:
            return None
        return tuple("x" if d == self.dim else None for d in range(t.dim()))


def call(op, *args, dim=0, name="", **kwargs):
    return Call(op, args, kwargs, dim, name)
