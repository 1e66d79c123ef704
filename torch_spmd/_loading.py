# SPDX-License-Identifier: Apache-2.0
"""Where and how often the package may be loaded. Imports nothing of PyTorch.

PyTorch has one slot for a device like ours and keeps what is put there for as long as the process
lives. So what is loaded first stays: `importlib.reload(torch_spmd)` does no harm, and an import
after the package was taken out of `sys.modules` gives back what was loaded before.
"""

from __future__ import annotations

import importlib
import sys
from types import ModuleType
from typing import Any

PACKAGE = "torch_spmd"


def check_interpreter() -> None:
    """Errors: ImportError in a sub-interpreter, where `import torch` would never return."""
    for name in ("_interpreters", "_xxsubinterpreters"):  # 3.13 has the first
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
    """The modules of the package, now."""
    return {
        name: module
        for name, module in sys.modules.items()
        if name == PACKAGE or name.startswith(f"{PACKAGE}.")
    }


def refuse_reload(module: str, namespace: dict[str, Any], kind: str) -> None:
    """At the head of a module whose classes others have imported.

    Errors: ImportError where it is loaded into the same namespace a second time; what was loaded
    first is left as it was.
    """
    if kind in namespace:
        raise ImportError(
            f"{module} cannot be reloaded, since objects that were made before would be of another "
            f"class {kind}; start a new process"
        )
