# SPDX-License-Identifier: Apache-2.0
"""Hooks around the steps of optimizers.

A step is one change of tensors (csrc/trace/session/optimizer_step.h). If its program fails, tensors
stay as they were, the error says how many steps did not happen, and what Python has counted
meanwhile, in optimizers and schedules, stays ahead by these.

The program of a step waits until its gradients are dropped (csrc/trace/run/end_of_step.h).
"""

from __future__ import annotations

import contextlib
import inspect
from collections.abc import Callable, Iterator
from types import FrameType
from typing import Any

from torch import Tensor
from torch.optim import Optimizer
from torch.optim.optimizer import (
    register_optimizer_step_post_hook,
    register_optimizer_step_pre_hook,
)
from torch.overrides import TorchFunctionMode
from torch.utils.weak import WeakIdKeyDictionary

from torch_spmd import _C


def install() -> None:
    """Installs both hooks. Called once."""
    register_optimizer_step_pre_hook(_before_step)
    register_optimizer_step_post_hook(_after_step)


class _NumbersAreOne(TorchFunctionMode):
    """Where nothing runs, a number that an optimizer reads is taken to be 1, as on a planning
    backend (csrc/trace/run/known_values.h): it scales an update, and no shape depends on it.
    `read`: how many were."""

    def __init__(self) -> None:
        super().__init__()
        self.read = 0
        self.step = contextlib.ExitStack()  # what ends with the optimizer's step

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        if func in (Tensor.item, Tensor.__float__):
            read = args[0]
            if read.device.type == "spmd" and read.numel() == 1 and read.is_floating_point():
                self.read += 1
                return 1.0
        return func(*args, **(kwargs or {}))


_only_recorded: _NumbersAreOne | None = None


@contextlib.contextmanager
def only_recorded() -> Iterator[_NumbersAreOne]:
    """Within it, a step of an optimizer is recorded as other code is, and ends no program. Gives
    what counts the numbers that optimizers read."""
    global _only_recorded
    before, _only_recorded = _only_recorded, _NumbersAreOne()
    try:
        with _only_recorded.step:  # of a step that has raised
            yield _only_recorded
    finally:
        _only_recorded = before


# Called when an optimizer has stepped, before what is pending becomes its program.
before_program: list[Callable[[], None]] = []

# By optimizers, which need no hash: how many steps had not happened when one last began.
_lost = WeakIdKeyDictionary()
# For how many parameters it had state when it began one, each number once.
_sizes = WeakIdKeyDictionary()


def _caller() -> FrameType | None:
    """The call of the step, which calls the hook that calls this."""
    frame = inspect.currentframe()
    hook = frame and frame.f_back
    return hook and hook.f_back


def _before_step(optimizer: Optimizer, args: Any, kwargs: Any) -> None:
    if _only_recorded is not None:
        _only_recorded.step.enter_context(_only_recorded)
        return
    lost = _C.optimizer_begins(optimizer, _caller())
    if lost is None:
        return
    if lost > 0 and _lost.get(optimizer) != lost:
        _lost[optimizer] = lost
        _forget_lost_state(optimizer)
    sizes, size = _sizes.setdefault(optimizer, [0]), len(_state_of(optimizer))
    if sizes[-1] != size:
        sizes.append(size)


def _after_step(optimizer: Optimizer, args: Any, kwargs: Any) -> None:
    if _only_recorded is not None:
        _only_recorded.step.close()
        return
    for call in before_program:
        call()
    _C.optimizer_stepped(optimizer)


def _state_of(optimizer: Optimizer) -> dict[Any, Any]:
    """By parameters; empty if whoever derives from Optimizer keeps it elsewhere."""
    state = getattr(optimizer, "state", None)
    return state if isinstance(state, dict) else {}


def _forget_lost_state(optimizer: Optimizer) -> None:
    """The first step of parameters makes their moments. If that step did not happen they have no
    value, and this one, which is the first, makes them again."""
    states = list(_state_of(optimizer).items())
    lost = next((k for k, (_, state) in enumerate(states) if _is_lost(state)), None)
    if lost is None:
        return
    kept = max(size for size in _sizes[optimizer] if size <= lost)
    for parameter, _ in states[kept:]:
        del optimizer.state[parameter]


def _is_lost(state: Any) -> bool:
    values = state.values() if isinstance(state, dict) else ()
    return any(isinstance(value, Tensor) and _C.is_lost(value) for value in values)
