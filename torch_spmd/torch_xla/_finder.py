# SPDX-License-Identifier: Apache-2.0
"""`import torch_xla` and `import torch_xla.…` find the modules of this package.

The modules are the same objects under both names, so that classes are. Where the real torch_xla is
installed, with its extension, nothing is done; a folder of its sources is not enough.
"""

from __future__ import annotations

import importlib
import importlib.machinery
import importlib.util
import sys
from collections.abc import Sequence
from types import ModuleType
from typing import Any

OURS = "torch_spmd.torch_xla"
THEIRS = "torch_xla"


class _Loader:
    def __init__(self, module: ModuleType) -> None:
        self._module = module
        self._spec = module.__spec__

    def create_module(self, spec: Any) -> ModuleType:
        return self._module

    def exec_module(self, module: ModuleType) -> None:
        module.__spec__ = self._spec  # the import system has written the other name's


class _Finder:
    def find_spec(
        self, name: str, path: Sequence[str] | None = None, target: ModuleType | None = None
    ) -> importlib.machinery.ModuleSpec | None:
        if name != THEIRS and not name.startswith(f"{THEIRS}."):
            return None
        ours = OURS + name.removeprefix(THEIRS)
        try:
            module = importlib.import_module(ours)
        except ModuleNotFoundError as error:
            if error.name is not None and ours.startswith(error.name):
                return None  # Python then says that there is no module of this name
            raise
        loader: Any = _Loader(module)
        return importlib.machinery.ModuleSpec(name, loader, is_package=hasattr(module, "__path__"))


def install() -> bool:
    """Asks this finder for `torch_xla` from now on. Returns False where the real one is there."""
    if any(isinstance(finder, _Finder) for finder in sys.meta_path):
        return True
    if THEIRS in sys.modules or importlib.util.find_spec("_XLAC") is not None:
        return False
    finder: Any = _Finder()
    sys.meta_path.insert(0, finder)
    return True
