# SPDX-License-Identifier: Apache-2.0
"""The same workloads as plain PyTorch."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator
from typing import Any
from unittest import mock

import torch
from torch import nn

import torch_spmd as spmd


def _but_to_the_device(move: Callable[..., Any]) -> Callable[..., Any]:
    def to(self: Any, *args: Any, **kw: Any) -> Any:
        return self if args == ("spmd",) else move(self, *args, **kw)

    return to


@contextlib.contextmanager
def on_the_host() -> Iterator[None]:
    """Within this context, tensors stay on the CPU and no marks are set: a workload that is created
    here without annotations of activations is plain PyTorch, now and later."""
    with (
        mock.patch.object(torch.Tensor, "to", _but_to_the_device(torch.Tensor.to)),
        mock.patch.object(nn.Module, "to", _but_to_the_device(nn.Module.to)),
        mock.patch.object(spmd, "mark_sharding", lambda x, mesh, spec: x),
    ):
        yield
