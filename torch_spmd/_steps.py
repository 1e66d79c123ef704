# SPDX-License-Identifier: Apache-2.0
"""Hooks into optimizers, schedulers and gradient scalers.

A step is one change of tensors and of what the host counts. If the program of a step fails or is
dropped, what Python has changed because of the step is undone
(csrc/trace/session/optimizer_step.h).
"""

from __future__ import annotations

import contextlib
import functools
from collections.abc import Iterator
from typing import Any

from torch.amp import grad_scaler
from torch.optim import Optimizer, lr_scheduler
from torch.optim.optimizer import (
    register_optimizer_step_post_hook,
    register_optimizer_step_pre_hook,
)
from torch.optim.swa_utils import AveragedModel

from torch_spmd import _C


def install() -> None:
    """Installs every hook. Called once."""
    register_optimizer_step_pre_hook(_before_step)
    register_optimizer_step_post_hook(_after_step)
    _end_steps_that_raise()
    for kind in vars(lr_scheduler).values():
        if isinstance(kind, type) and issubclass(kind, lr_scheduler.LRScheduler):
            _follow(kind, "step", ["__dict__"])
    _follow(AveragedModel, "update_parameters", ["_buffers"])
    _look_before_a_scaled_step()


_only_recorded = False


@contextlib.contextmanager
def only_recorded() -> Iterator[None]:
    """Within it, a step of an optimizer is recorded as other code is, and ends no program."""
    global _only_recorded
    before, _only_recorded = _only_recorded, True
    try:
        yield
    finally:
        _only_recorded = before


def _before_step(optimizer: Optimizer, args: Any, kwargs: Any) -> None:
    if not _only_recorded:
        _C.optimizer_begins(optimizer)


def _after_step(optimizer: Optimizer, args: Any, kwargs: Any) -> None:
    if not _only_recorded:
        _C.optimizer_stepped(optimizer)


def _end_steps_that_raise() -> None:
    """Tells the session if a step raises, for which PyTorch has no hook: what is recorded
    afterwards does not belong to the step."""
    make = Optimizer.profile_hook_step

    def ending(method: Any) -> Any:
        step = make(method)

        @functools.wraps(step)
        def ended(self: Optimizer, *args: Any, **kwargs: Any) -> Any:
            try:
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
