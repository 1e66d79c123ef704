# SPDX-License-Identifier: Apache-2.0
"""The process group named "xla", which SPMD does not have."""

from __future__ import annotations

from typing import Any

import torch.distributed as dist
from torch.distributed import TCPStore
from torch.distributed.rendezvous import register_rendezvous_handler


def _refuse(*args: Any) -> Any:
    raise AssertionError(
        "XLA backend is not supported with SPMD. Please use a CPU process group instead."
    )


def register() -> None:
    """Gives `torch.distributed` a backend "xla" whose creation says what to use instead."""
    if not hasattr(dist.Backend, "XLA"):
        dist.Backend.register_backend("xla", _refuse, devices="spmd")


def _rendezvous(url: str, timeout: Any = None, **kwargs: Any) -> Any:
    store = TCPStore("localhost", 0, 1, True)
    yield store, 0, 1


register()
register_rendezvous_handler("xla", _rendezvous)
