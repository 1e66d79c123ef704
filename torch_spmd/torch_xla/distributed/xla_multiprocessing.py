# SPDX-License-Identifier: Apache-2.0
"""Starting processes: there is one."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from torch_spmd import torch_xla
from torch_spmd.torch_xla.distributed import xla_backend  # noqa: F401


def spawn(
    fn: Callable[..., Any],
    args: tuple[Any, ...] = (),
    nprocs: int | None = None,
    join: bool = True,
    daemon: bool = False,
    start_method: str = "spawn",
) -> None:
    """Calls `fn(0, *args)` in this process.

    Errors: ValueError for more than one process; NotImplementedError with SPMD.
    """
    if nprocs not in (None, 1):
        raise ValueError(
            f"xmp.spawn: nprocs is {nprocs}; one process has all devices: leave it out and mark "
            "tensors with xs.mark_sharding"
        )
    torch_xla.launch(fn, args, start_method)


class MpModelWrapper:
    """Holds a model until it is moved to the device."""

    def __init__(self, model: Any) -> None:
        self._model = model

    def to(self, device: Any) -> Any:
        return self._model.to(device)


class MpSerialExecutor:
    """Runs functions one after another."""

    def run(self, fn: Callable[[], Any]) -> Any:
        return fn()
