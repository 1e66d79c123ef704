# SPDX-License-Identifier: Apache-2.0
"""What `import torch` runs where torch_spmd is installed: the entry point `torch.backends`.

It gives the device its name, so that `device="spmd"` works without `import torch_spmd`, and puts a
module in the place of `torch.spmd` that imports the package when a tensor is first created on the
device or moved to it. Until then the device counts as not available, and everything else works as
without torch_spmd. This is no part of the package, which registers the device when it is imported.
"""

from __future__ import annotations

import os
import sys
import types
from typing import Any

_NAME = "spmd"
_GROUP = "torch.backends"


def autoload() -> None:
    """Called by `import torch`. Raises nothing.

    With SPMD_TORCH_XLA=1 the package is loaded, and `import torch_xla` means
    `torch_spmd.torch_xla`; a package that is being loaded does so itself.

    Does nothing if the slot for outside devices (PrivateUse1) is taken, if another installed
    backend would take it, or if PyTorch is built for an accelerator, which would no longer be the
    one that `torch.accelerator` finds.
    """
    try:
        import torch

        if os.environ.get("SPMD_TORCH_XLA") == "1" and "torch_spmd" not in sys.modules:
            import torch_spmd.torch_xla.install  # noqa: F401
        taken = torch._C._get_privateuse1_backend_name() != "privateuseone"
        if taken or hasattr(torch, _NAME) or torch._C._get_accelerator().type != "cpu":
            return
        if _others():
            return
        torch._C._rename_privateuse1_backend(_NAME)
        torch._register_device_module(_NAME, _Unused(f"torch.{_NAME}"))
    except Exception:
        return


def _others() -> bool:
    from importlib.metadata import entry_points

    return any(entry.value.partition(":")[0] != __name__ for entry in entry_points(group=_GROUP))


class _Unused(types.ModuleType):
    """`torch.spmd` until it is used."""

    _seed: int | None = None

    # What PyTorch asks and says without using the device: torch.manual_seed; optimizers and
    # checkpoint, which would take another way if there were an accelerator.

    def is_available(self) -> bool:
        return False

    def device_count(self) -> int:
        return 0

    def _is_in_bad_fork(self) -> bool:
        return False

    def manual_seed_all(self, seed: int) -> None:
        self._seed = seed

    def _lazy_init(self) -> None:
        """Called by PyTorch when a tensor is first created on the device, or moved to it."""
        self._load()

    def __getattr__(self, name: str) -> Any:
        if name.startswith("__") or name in ("registered", "loaded"):
            raise AttributeError(name)
        return getattr(self._load(), name)

    def _load(self) -> Any:
        import torch

        import torch_spmd  # noqa: F401

        module: Any = getattr(torch, _NAME)
        if module is self:
            raise ImportError("torch_spmd: the import did not register the device 'spmd'")
        return module

    def _replace(self) -> None:
        """Called before the device is registered: makes room for the real module."""
        import torch

        del torch.__dict__[_NAME]
        sys.modules.pop(f"torch.{_NAME}", None)
