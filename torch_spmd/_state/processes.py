# SPDX-License-Identifier: Apache-2.0
"""Which of several processes this is. They talk through torch.distributed, if it has a group."""

from __future__ import annotations

import sys
from typing import Any

_own: Any = None  # a group that only checkpoints use, as their threads run beside others


def _group() -> Any:
    distributed = sys.modules.get("torch.distributed")
    if distributed is None or not distributed.is_available() or not distributed.is_initialized():
        return None
    return distributed


def rank() -> int:
    group = _group()
    return 0 if group is None else int(group.get_rank())


def count() -> int:
    group = _group()
    return 1 if group is None else int(group.get_world_size())


def meet() -> None:
    """Called by all processes, in the main thread, before any of them calls `gather`."""
    global _own
    if _own is None and count() > 1:
        _own = _group().new_group(backend="gloo")


def gather(value: Any) -> list[Any]:
    """The value of each process, in all of them."""
    if count() == 1:
        return [value]
    found: list[Any] = [None] * count()
    _group().all_gather_object(found, value, group=_own)
    return found


def from_first(value: Any) -> Any:
    """The value of process 0."""
    return gather(value)[0]


def raise_any(error: BaseException | None) -> None:
    """Raises in all processes what one of them met: its own error, or the first one's."""
    errors = gather(None if error is None else f"{type(error).__name__}: {error}")
    if error is not None:
        raise error
    for process, text in enumerate(errors):
        if text is not None:
            raise RuntimeError(f"process {process} failed: {text}")


def local_devices() -> set[int] | None:
    """The devices of this process; None if it has all."""
    import torch_spmd

    ask = getattr(torch_spmd, "local_devices", None)
    return None if ask is None or count() == 1 else {int(d) for d in ask()}
