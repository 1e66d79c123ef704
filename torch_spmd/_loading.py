# SPDX-License-Identifier: Apache-2.0
"""Checks where and how often the package is loaded. Imports nothing from PyTorch.

PyTorch has one slot for a device like ours, and keeps its contents as long as the process lives. So
what is loaded first stays: `importlib.reload(torch_spmd)` has no effect, and an import after the
package was removed from `sys.modules` returns what was loaded before.
"""

from __future__ import annotations

import importlib
import sys
from types import ModuleType
from typing import Any

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
