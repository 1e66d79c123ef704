# SPDX-License-Identifier: Apache-2.0
"""Registration of the device `spmd`. Runs once, when torch_spmd is imported."""

from __future__ import annotations

import atexit
from pathlib import Path

import torch
from torch.utils import backend_registration

from torch_spmd import _adam, _fake, _hooks, _lists, _module, _steps

DEVICE = "spmd"


def register() -> None:
    """Takes PyTorch's one slot for outside devices and fills it.

    Errors: ImportError naming the backend that has the slot already.
    """
    taken = torch._C._get_privateuse1_backend_name()
    if taken not in ("privateuseone", DEVICE):
        raise ImportError(
            f"torch_spmd needs PyTorch's slot for outside devices (PrivateUse1), and backend "
            f"{taken!r} has taken it; a process can use only one of the two. Import torch_spmd "
            f"in a process that does not import {taken!r}."
        )
    # Imported here: the extension links torch's libraries, which `import torch` has loaded by now.
    from torch_spmd import _C

    backend_registration.rename_privateuse1_backend(DEVICE)
    torch._register_device_module(DEVICE, _module.DeviceModule("torch.spmd"))
    backend_registration.generate_methods_for_privateuse1_backend()
    _C.register_device([_folder_of(torch.__file__), _folder_of(__file__)])
    _hooks.install()
    _adam.install()
    _fake.install()
    _lists.install()
    _steps.install()
    atexit.register(_hooks.at_exit)


def _folder_of(file: str) -> str:
    return str(Path(file).parent) + "/"
