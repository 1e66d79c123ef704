# SPDX-License-Identifier: Apache-2.0
"""Registration of the device `spmd`. Runs once, when torch_spmd is imported."""

from __future__ import annotations

import atexit
import sys
from pathlib import Path
from typing import Any

import torch
from torch.utils import backend_registration

from torch_spmd import _compat, _loading
from torch_spmd.device import (
    attention,
    compilers,
    fake_tensors,
    hooks,
    optimizer_steps,
    other_devices,
    profiler,
    torch_module,
)

DEVICE = "spmd"


def register() -> None:
    """Registers the device in PyTorch's one slot for outside devices, once per process.

    If the package was loaded before, its modules are imported again.

    Errors: ImportError if another backend has the slot, which is named, or if an earlier import
    failed half way.
    """
    device: Any = getattr(torch, DEVICE, None)
    if getattr(device, "registered", False):
        sys.modules.update(device.loaded)
        return
    if hasattr(device, "registered"):
        raise ImportError(
            "torch_spmd: an earlier import in this process failed while it registered the device; "
            "start a new process"
        )
    taken = _compat.core._get_privateuse1_backend_name()
    if taken not in ("privateuseone", DEVICE):
        raise ImportError(
            f"torch_spmd needs PyTorch's slot for outside devices (PrivateUse1), and backend "
            f"{taken!r} has taken it; a process can use only one of the two. Import torch_spmd "
            f"in a process that does not import {taken!r}."
        )
    # Imported here: the extension links torch's libraries, which `import torch` has loaded by now.
    from torch_spmd import _C

    unused = getattr(torch, DEVICE, None)  # of torch_spmd_autoload
    if unused is not None:
        unused._replace()
    backend_registration.rename_privateuse1_backend(DEVICE)
    device = torch_module.DeviceModule("torch.spmd")
    _compat.top._register_device_module(DEVICE, device)
    backend_registration.generate_methods_for_privateuse1_backend()
    _C.register_device([_folder_of(torch.__file__), _folder_of(_loading.__file__)])
    hooks.install()
    profiler.install()
    attention.install()
    fake_tensors.install()
    other_devices.install()
    optimizer_steps.install()
    compilers.install()
    atexit.register(hooks.at_exit)
    if unused is not None and unused._seed is not None:
        device.manual_seed(unused._seed)
    device.registered = True


def keep_loaded() -> None:
    """Called when the package is loaded, for an import after it was removed from `sys.modules`."""
    device: Any = getattr(torch, DEVICE)
    device.loaded = device.loaded or _loading.loaded()


def _folder_of(file: str) -> str:
    return str(Path(file).parent) + "/"
