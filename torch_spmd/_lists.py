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
from types import ModuleType
from typing import Any

import torch

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


# When the module of that name is imported; it is not imported for this.
_LATER: dict[str, Amend] = {
    "safetensors.torch": _safetensors,
    "torch.nn.attention.flex_attention": _flex_attention,
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
