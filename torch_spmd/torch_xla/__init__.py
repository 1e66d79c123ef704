# SPDX-License-Identifier: Apache-2.0
"""The modules of PyTorch/XLA that SPMD scripts import, on the device `spmd`.

    import torch_spmd.torch_xla.install   # or: python -m torch_spmd.torch_xla script.py
    import torch_xla, torch_xla.distributed.spmd as xs

Names, defaults, sharding texts and kinds of exceptions are those of release 2.9. docs/torch_xla.md
says what differs.
"""

from __future__ import annotations

import contextlib
import functools
import os
from collections.abc import Callable
from contextlib import AbstractContextManager
from typing import Any

import torch

import torch_spmd as spmd
from torch_spmd.torch_xla import _device
from torch_spmd.torch_xla.version import __version__

_found_libtpu = _found_libneuronxla = False


def device(index: int | None = None) -> torch.device:
    """The one logical device, `torch.device("xla:0")`. Errors: IndexError for another index."""
    if index not in (None, 0):
        raise IndexError(f"Device index {index} out of range in ['xla:0']")
    return _device.XLA


def devices() -> list[torch.device]:
    """All logical devices: one."""
    return [_device.XLA]


def real_devices() -> list[str]:
    """The names of the devices of meshes, such as "CPU:0"."""
    return _XLAC._xla_real_devices()


def device_count() -> int:
    """The number of devices of meshes."""
    return spmd.config.device_count()


def sync(wait: bool = False, reset_scope: bool = True) -> None:
    """Runs what is pending, then the closures of the step."""
    from torch_spmd.torch_xla import _auto_pending, _hlo
    from torch_spmd.torch_xla.core import xla_model

    wait = wait or os.environ.get("XLA_SYNC_WAIT", "0") not in ("0", "")
    _auto_pending.shard_pending()
    _hlo.dump(lambda: spmd.sync(wait=wait))
    xla_model._run_step_closures()


def manual_seed(seed: int, device: Any = None) -> None:
    """Seeds the device's random numbers."""
    spmd.config.manual_seed(seed)


@contextlib.contextmanager
def _step() -> Any:
    sync()
    try:
        yield
    finally:
        sync()


def step() -> AbstractContextManager[None]:
    """A context whose ops are one step: what is pending runs before it and after it."""
    return _step()


def compile(
    f: Callable[..., Any] | None = None,
    full_graph: bool | None = False,
    name: str | None = None,
    max_different_graphs: int | None = None,
) -> Any:
    """A function, or a context if none is given, that runs as one step.

    Every step of the device is compiled anyhow; this says where it begins and ends.

    Errors: RuntimeError with `full_graph` if a call ran more than one program, or with
    `max_different_graphs` if calls compiled more.
    """
    if f is None:
        return _step()
    compiled = 0

    @functools.wraps(f)
    def stepped(*args: Any, **kwargs: Any) -> Any:
        nonlocal compiled
        sync()
        before = spmd._C.statistics()
        result = f(*args, **kwargs)
        sync()
        after = spmd._C.statistics()
        compiled += after["compiles"] - before["compiles"]
        what = name or getattr(f, "__name__", str(f))
        if full_graph and after["runs"] - before["runs"] > 1:
            raise RuntimeError(
                f"torch_xla.compile: {what} was to be one graph, and ran "
                f"{after['runs'] - before['runs']} programs: it reads a value, which ends a graph"
            )
        if max_different_graphs is not None and compiled > max_different_graphs:
            raise RuntimeError(
                f"torch_xla.compile: {what} has {compiled} different graphs; at most "
                f"{max_different_graphs} are allowed"
            )
        return result

    return stepped


def launch(
    fn: Callable[..., Any],
    args: tuple[Any, ...] = (),
    start_method: str = "spawn",
    debug_single_process: bool = False,
) -> None:
    """Calls `fn(0, *args)` in this process, which has all devices.

    Errors: NotImplementedError with SPMD, which is one process already.
    """
    from torch_spmd.torch_xla import runtime

    if runtime.is_spmd() and not debug_single_process:
        raise NotImplementedError(
            "torch_xla.launch: with SPMD one process has all devices; call the function itself"
        )
    fn(0, *args)


from torch_spmd.torch_xla import _XLAC, _ops  # noqa: E402, F401

# What torch_xla has after `import torch_xla`, by its own names and as modules of modules.
from torch_spmd.torch_xla import runtime as xr  # noqa: E402
from torch_spmd.torch_xla._internal import jax_workarounds as _jax_workarounds  # noqa: E402, F401
from torch_spmd.torch_xla.core import xla_env_vars as xenv  # noqa: E402
from torch_spmd.torch_xla.core import xla_model as xm  # noqa: E402
from torch_spmd.torch_xla.debug import metrics as _met  # noqa: E402, F401
from torch_spmd.torch_xla.debug import profiler as _xp  # noqa: E402, F401
from torch_spmd.torch_xla.distributed import spmd as _xs  # noqa: E402, F401
from torch_spmd.torch_xla.distributed import xla_multiprocessing as xmp  # noqa: E402
from torch_spmd.torch_xla.experimental import eager_mode  # noqa: E402
from torch_spmd.torch_xla.utils import utils as xu  # noqa: E402

__all__ = [
    "__version__",
    "compile",
    "device",
    "device_count",
    "devices",
    "eager_mode",
    "launch",
    "manual_seed",
    "real_devices",
    "step",
    "sync",
    "xenv",
    "xm",
    "xmp",
    "xr",
    "xu",
]
