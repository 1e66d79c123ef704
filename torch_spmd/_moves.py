# SPDX-License-Identifier: Apache-2.0
"""Warns, once a module, when a module with marks moves off the device: `module.cpu()`.

On the host it computes everything itself, without a word, which is seldom what a script means that
marked it: trainers choose the CPU where they do not find the device.
"""

from __future__ import annotations

import functools
import threading
import warnings
import weakref
from collections.abc import Callable
from typing import Any

from torch import Tensor, nn


class _Moving(threading.local):
    """The module that is being converted in this thread, and whether a mark of it has left."""

    outermost: nn.Module | None = None
    left = False


_moving = _Moving()
_warned: weakref.WeakSet[nn.Module] = weakref.WeakSet()


def install() -> None:
    """Called once, when the device is registered."""
    apply = nn.Module._apply

    @functools.wraps(apply)
    def apply_and_look(self: nn.Module, fn: Callable[..., Any], recurse: bool = True) -> Any:
        if _moving.outermost is not None:
            return _apply_within(apply, self, fn, recurse)
        _moving.outermost, _moving.left = self, False
        try:
            result = _apply_within(apply, self, fn, recurse)
        finally:
            left, _moving.outermost = _moving.left, None
        if left and self not in _warned:
            _warned.add(self)
            warnings.warn(
                f"{type(self).__name__} has marks and has moved to the host, where it is not "
                "sharded; they hold again when it moves back to 'spmd'. If a trainer moved it, it "
                "has not found the device: docs/other-packages.md, Trainers",
                stacklevel=3,
            )
        return result

    nn.Module._apply = apply_and_look  # type: ignore[method-assign]


def _apply_within(
    apply: Callable[..., Any], module: nn.Module, fn: Callable[..., Any], recurse: bool
) -> Any:
    buffers = dict(module._buffers)
    result = apply(module, fn, recurse)
    for name, old in buffers.items():
        replaced(old, module._buffers.get(name))
    return result


def replaced(old: Tensor | None, new: Tensor | None) -> None:
    """Called where a module gets the converted tensor `new` for `old`, which is still there."""
    if _moving.outermost is None or _moving.left or old is None or new is None:
        return
    if old.device.type != "spmd" or new.device.type != "cpu" or old.is_sparse:
        return
    from torch_spmd import _hooks, _ops
    from torch_spmd.tensors import mark_of

    is_plain = not nn.parameter.is_lazy(old) and not _ops.is_traced(old)
    if is_plain and not _hooks.in_forked_child():
        _moving.left = mark_of(old) is not None
