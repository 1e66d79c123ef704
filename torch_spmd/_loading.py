# SPDX-License-Identifier: Apache-2.0
"""Checks where and how often the package is loaded, and with which PyTorch.

PyTorch has one slot for a device like ours, and keeps its contents as long as the process lives. So
what is loaded first stays: `importlib.reload(torch_spmd)` has no effect, and an import after the
package was removed from `sys.modules` returns what was loaded before.
"""

from __future__ import annotations

import importlib
import os
import sys
import warnings
from types import ModuleType
from typing import Any

from torch_spmd import _versions

PACKAGE = "torch_spmd"


def check_interpreter() -> None:
    """Errors: ImportError in a sub-interpreter, where `import torch` would never return."""
    for name in ("_interpreters", "_xxsubinterpreters"):  # the first exists since Python 3.13
        try:
            interpreters: Any = importlib.import_module(name)
        except ImportError:
            continue
        here, main = interpreters.get_current(), interpreters.get_main()
        if isinstance(here, tuple):
            here, main = here[0], main[0]
        if here == main:
            return
        raise ImportError(
            "torch_spmd cannot be imported in a sub-interpreter, since PyTorch cannot; import it "
            "in the main interpreter, or start a process of its own (torch.multiprocessing)"
        )


def find_extension(path: list[str]) -> None:
    """Puts the folder whose extension is built for this PyTorch first in `path`, the package's.

    Each version of PyTorch has a folder, since an extension that is loaded into another version
    ends the process sooner or later. Warns once if PyTorch is newer than the tested versions.
    Errors: ImportError if the package is not built for this version.
    """
    import torch

    version = str(torch.__version__)
    package = os.path.dirname(os.path.abspath(__file__))
    folder = os.path.join(package, _versions.extension_folder(version))
    if not os.path.isdir(folder):
        built = sorted(name for name in os.listdir(package) if name.startswith("_torch_"))
        others = " and ".join(name[len("_torch_") :].replace("_", ".") for name in built)
        raise ImportError(
            f"torch_spmd is built for PyTorch {others or '(none)'}, and this is {version}; "
            "build it in its checkout: pip install --no-build-isolation --no-deps ."
        )
    if folder not in path:
        path.insert(0, folder)
    if _versions.is_newer_than_tested(version):
        warnings.warn(_versions.untested(version), stacklevel=3)


def loaded() -> dict[str, ModuleType]:
    """The modules of the package that are loaded now."""
    return {
        name: module
        for name, module in sys.modules.items()
        if name == PACKAGE or name.startswith(f"{PACKAGE}.")
    }


def refuse_reload(module: str, namespace: dict[str, Any], kind: str) -> None:
    """Called at the beginning of a module whose classes other modules import.

    Errors: ImportError if the module is loaded into the same namespace a second time; its contents
    then stay as they are.
    """
    if kind in namespace:
        raise ImportError(
            f"{module} cannot be reloaded, since existing objects would be of another class "
            f"{kind}; start a new process"
        )
