# SPDX-License-Identifier: Apache-2.0
"""Patches other code whose lists of devices cannot be extended.

Where PyTorch asks a device's module, `torch.spmd` answers (torch_spmd/_module.py). The code that is
patched here names devices itself. docs/other-packages.md says what works and what to write instead.
"""

from __future__ import annotations

import functools
import importlib
import importlib.abc
import importlib.machinery
import importlib.util
import sys
from collections.abc import Callable, Sequence
from types import FunctionType, ModuleType
from typing import Any

import torch

from torch_spmd import _trainers

DEVICE = "spmd"

Amend = Callable[[Any], None]


def install() -> None:
    """Called once, when the device is registered."""
    # The package's attribute of this name is a function.
    _data_parallel(importlib.import_module("torch.nn.parallel.data_parallel"))
    for name, amend in _LATER.items():
        if name in sys.modules:
            amend(sys.modules[name])
    sys.meta_path.insert(0, _Finder())


def _is_ours(device: Any) -> bool:
    return str(device).partition(":")[0] == DEVICE


def _data_parallel(module: Any) -> None:
    """nn.DataParallel makes a replica for each accelerator, but there is one logical device.

    So it becomes the module itself, as without accelerators, for tensors of every device.
    """
    available = module._get_available_device_type

    def other_than_ours() -> str | None:
        kind: str | None = available()
        return None if kind == DEVICE else kind

    module._get_available_device_type = other_than_ours


def _flex_attention(module: Any) -> None:
    """flex_attention consists of ops that run on every device, but checks the device's name."""
    validate = module._validate_device

    @functools.wraps(validate)
    def validate_device(query: torch.Tensor, *others: torch.Tensor) -> None:
        if query.device.type != DEVICE:
            validate(query, *others)

    module._validate_device = validate_device


def _safetensors(module: Any) -> None:
    """Files are read on the CPU; their tensors are moved afterwards."""
    load_file = module.load_file

    @functools.wraps(load_file)
    def load(filename: Any, device: Any = "cpu", **options: Any) -> dict[str, torch.Tensor]:
        if not _is_ours(device):
            return load_file(filename, device=device, **options)
        read = load_file(filename, device="cpu", **options)
        return {name: tensor.to(device) for name, tensor in read.items()}

    module.load_file = load  # load_model calls it, too


def _device_mesh(module: Any) -> None:
    """A DeviceMesh of "spmd" has no process groups: its ranks are devices of this process."""
    init = module.DeviceMesh.__init__

    @functools.wraps(init)
    def without_groups(self: Any, device_type: str, *args: Any, **options: Any) -> None:
        if device_type == DEVICE:
            options |= {"_init_backend": False, "_rank": 0}
        init(self, device_type, *args, **options)

    module.DeviceMesh.__init__ = without_groups


def _distribute_tensor(module: Any) -> None:
    """`distribute_tensor` with a mesh of "spmd" marks a tensor of the device.

    Scripts have often imported the function by name before, so that it gets other code.
    """
    function = module.distribute_tensor
    original = FunctionType(
        function.__code__, function.__globals__, function.__name__, function.__defaults__
    )
    original.__kwdefaults__ = function.__kwdefaults__
    function.__torch_spmd_original__ = original

    def distribute_tensor(*args: Any, **options: Any) -> Any:
        from torch_spmd import _lists

        return _lists.distribute_tensor(*args, **options)

    function.__defaults__ = function.__kwdefaults__ = None
    function.__code__ = distribute_tensor.__code__


def distribute_tensor(
    tensor: torch.Tensor,
    device_mesh: Any = None,
    placements: Any = None,
    **options: Any,
) -> Any:
    """What `torch.distributed.tensor.distribute_tensor` does now."""
    api: Any = sys.modules["torch.distributed.tensor._api"]
    mesh = device_mesh or api._mesh_resources.get_current_mesh()
    from torch_spmd import Mesh, dtensors

    if not isinstance(mesh, Mesh) and mesh.device_type != DEVICE:
        original = api.distribute_tensor
        return original.__torch_spmd_original__(tensor, mesh, placements, **options)
    return dtensors.distribute_tensor(tensor, mesh, placements)


def _async_save(module: Any) -> None:
    """It copies every tensor of a device to the host as a whole before it writes it."""
    from torch_spmd._state import staging

    staging.install(module)


# When the module of that name is imported; it is not imported for this.
_LATER: dict[str, Amend] = {
    "safetensors.torch": _safetensors,
    "torch.nn.attention.flex_attention": _flex_attention,
    "torch.distributed.checkpoint.state_dict_saver": _async_save,
    "torch.distributed.device_mesh": _device_mesh,
    "torch.distributed.tensor._api": _distribute_tensor,
    **_trainers.AMENDMENTS,
}


class _Finder(importlib.abc.MetaPathFinder):
    """A finder that finds no module itself, and patches modules after others have loaded them."""

    def find_spec(
        self, fullname: str, path: Sequence[str] | None, target: ModuleType | None = None
    ) -> importlib.machinery.ModuleSpec | None:
        amend = _LATER.get(fullname)
        if amend is None:
            return None
        for finder in sys.meta_path:
            if finder is self:
                continue
            spec = finder.find_spec(fullname, path, target)
            if spec is not None and spec.loader is not None:
                spec.loader = _Loader(spec.loader, amend)
                return spec
        return None


class _Loader(importlib.abc.Loader):
    def __init__(self, loader: Any, amend: Amend) -> None:
        self._loader = loader
        self._amend = amend

    def create_module(self, spec: importlib.machinery.ModuleSpec) -> ModuleType | None:
        return self._loader.create_module(spec)

    def exec_module(self, module: ModuleType) -> None:
        # Restored for code that looks at it later.
        module.__loader__ = self._loader
        if module.__spec__ is not None:
            module.__spec__.loader = self._loader
        self._loader.exec_module(module)
        self._amend(module)
