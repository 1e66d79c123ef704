# SPDX-License-Identifier: Apache-2.0
"""Hooks into optimizers, schedulers and gradient scalers.

A step is one change of tensors and of what the host counts. If the program of a step fails or is
dropped, what Python has changed because of the step is undone
(csrc/trace/session/optimizer_step.h).

The program of a step waits for `zero_grad()` where that comes right behind it
(csrc/trace/run/end_of_step.h), and not where it comes at the head of a loop:

    optimizer.zero_grad()        the first call is before the first step, from this line
    model(x).sum().backward()
    optimizer.step()             gradients are kept until the loop begins again
"""

from __future__ import annotations

import contextlib
import functools
import sys
import weakref
from collections.abc import Callable, Iterator
from types import CodeType
from typing import Any

from torch import Tensor, nn
from torch.amp import grad_scaler
from torch.optim import Optimizer, lr_scheduler
from torch.optim.optimizer import (
    register_optimizer_step_post_hook,
    register_optimizer_step_pre_hook,
)
from torch.optim.swa_utils import AveragedModel
from torch.overrides import TorchFunctionMode
from torch.utils.weak import WeakIdKeyDictionary

from torch_spmd import _C


def install() -> None:
    """Installs every hook. Called once."""
    register_optimizer_step_pre_hook(_before_step)
    register_optimizer_step_post_hook(_after_step)
    _end_steps_that_raise()
    _notice_zero_grad()
    for kind in vars(lr_scheduler).values():
        if isinstance(kind, type) and issubclass(kind, lr_scheduler.LRScheduler):
            _follow(kind, "step", ["__dict__"])
    _follow(AveragedModel, "update_parameters", ["_buffers"])
    _look_before_a_scaled_step()


class _NumbersAreOne(TorchFunctionMode):
    """Where nothing runs, a number that an optimizer reads is taken to be 1, as on a planning
    backend (csrc/trace/run/known_values.h): it scales an update, and no shape depends on it.
    `read`: how many were."""

    def __init__(self) -> None:
        super().__init__()
        self.read = 0

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
        yield _only_recorded
    finally:
        _only_recorded = before


# Called when an optimizer has stepped, before what is pending becomes its program.
before_program: list[Callable[[], None]] = []


def _before_step(optimizer: Optimizer, args: Any, kwargs: Any) -> None:
    if _only_recorded is None:
        _C.optimizer_begins(optimizer)


def _after_step(optimizer: Optimizer, args: Any, kwargs: Any) -> None:
    if _only_recorded is None:
        for call in before_program:
            call()
        _C.optimizer_stepped(optimizer, _loop_of(optimizer).habit)


# Where a function is called: the caller's code, and the instruction in it.
_Place = tuple[CodeType, int]


class _Loop:
    """What is known of the loop in which an optimizer steps."""

    def __init__(self, optimizer: Optimizer) -> None:
        parameters = [p for group in optimizer.param_groups for p in group["params"]]
        self.parameters = {id(p) for p in parameters}
        # Where gradients were zeroed before the first step. If that is the head of the loop, they
        # are there until it begins again.
        found = (_zeroed_at.get(key) for key in (optimizer, *parameters))
        self.head: _Place | None = next((place for place in found if place is not None), None)
        self.habit = _C.GradientHabit()
        self.habit.kept = self.head is not None

    def zeroed(self, place: _Place) -> None:
        if self.head is not None and place != self.head:  # behind the step, too
            self.head = None
            self.habit.kept = False


_loops: weakref.WeakKeyDictionary[Optimizer, _Loop] = weakref.WeakKeyDictionary()
_last_loop: weakref.ref[_Loop] | None = None  # of the optimizer that has stepped last
# Where gradients were zeroed before a step: of optimizers, and of modules by their first parameter.
_zeroed_at: WeakIdKeyDictionary = WeakIdKeyDictionary()


def _loop_of(optimizer: Optimizer) -> _Loop:
    global _last_loop
    loop = _loops.get(optimizer)
    if loop is None:
        loop = _loops[optimizer] = _Loop(optimizer)
    _last_loop = weakref.ref(loop)
    return loop


def _note_zero_grad(owner: Optimizer | nn.Module, place: _Place) -> None:
    key: Any = owner
    if isinstance(owner, Optimizer):
        loop = _loops.get(owner)
    else:
        key = next(owner.parameters(), None)
        loop = _last_loop() if _last_loop is not None else None
        if loop is not None and id(key) not in loop.parameters:
            loop = None
    if loop is not None:
        loop.zeroed(place)
    elif key is not None:
        _zeroed_at[key] = place


def _notice_zero_grad() -> None:
    """Gradients that are dropped behind a step are no results of its program, which waits for it.

    Where they are dropped by other means, the program waits for the next use of the device."""

    def noticing(zero_grad: Any) -> Any:
        @functools.wraps(zero_grad)
        def noticed(self: Any, *args: Any, **kwargs: Any) -> Any:
            result = zero_grad(self, *args, **kwargs)
            caller = sys._getframe(1)
            _note_zero_grad(self, (caller.f_code, caller.f_lasti))
            _C.gradients_zeroed()
            return result

        return noticed

    Optimizer.zero_grad = noticing(Optimizer.zero_grad)  # type: ignore[method-assign]
    nn.Module.zero_grad = noticing(nn.Module.zero_grad)  # type: ignore[method-assign]


def _end_steps_that_raise() -> None:
    """Tells the session if a step raises, for which PyTorch has no hook: what is recorded
    afterwards does not belong to the step."""
    make = Optimizer.profile_hook_step

    def ending(method: Any) -> Any:
        step = make(method)

        @functools.wraps(step)
        def ended(self: Optimizer, *args: Any, **kwargs: Any) -> Any:
            try:
                if _only_recorded is not None:
                    with _only_recorded:
                        return step(self, *args, **kwargs)
                return step(self, *args, **kwargs)
            except BaseException:
                _C.optimizer_raised(self)
                raise

        return ended

    Optimizer.profile_hook_step = staticmethod(ending)  # type: ignore[method-assign, assignment]


def _follow(kind: type, name: str, attributes: list[str]) -> None:
    """Adds what the method changes in these attributes of its object to the last step."""
    method = vars(kind).get(name)
    if method is None:
        return

    @functools.wraps(method)
    def followed(self: Any, *args: Any, **kwargs: Any) -> Any:
        changes = _C.DictChanges()
        for attribute in attributes:
            changes.note(self, attribute)
        optimizer = getattr(self, "optimizer", None)
        if optimizer is not None:
            changes.note(optimizer, "param_groups")
        result = method(self, *args, **kwargs)
        _C.add_to_last_step(optimizer, changes)
        return result

    setattr(kind, name, followed)


def _look_before_a_scaled_step() -> None:
    """A scaler reads whether gradients are finite. If they were lost, it has not unscaled them."""
    step = grad_scaler.GradScaler._maybe_opt_step

    @functools.wraps(step)
    def looking(
        self: Any, optimizer: Optimizer, optimizer_state: dict[str, Any], *args: Any, **kwargs: Any
    ) -> float | None:
        try:
            for found in optimizer_state["found_inf_per_device"].values():
                if found.device.type == "spmd":
                    found.item()
        except Exception:
            self._per_optimizer_states.pop(id(optimizer), None)
            raise
        return step(self, optimizer, optimizer_state, *args, **kwargs)

    grad_scaler.GradScaler._maybe_opt_step = looking  # type: ignore[method-assign]
