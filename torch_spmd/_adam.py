# SPDX-License-Identifier: Apache-2.0
"""Adam's and AdamW's default step, recorded as one op (csrc/trace/multi_tensor_adam.h)."""

from __future__ import annotations

import functools
import importlib
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor
from torch.overrides import _get_current_function_mode_stack
from torch.utils._device import DeviceContext

from torch_spmd import _C


def install() -> None:
    """Puts the one op where PyTorch would take the step by ops on lists. Called once."""
    # By its name: torch.optim has no attribute for it.
    module: Any = importlib.import_module("torch.optim.adam")
    module._multi_tensor_adam = _whole(module._multi_tensor_adam)


def _whole(by_lists: Callable[..., None]) -> Callable[..., None]:
    @functools.wraps(by_lists)
    def step(*lists: Any, **options: Any) -> None:
        if not _step(*lists, **options):
            by_lists(*lists, **options)

    return step


def _is_plain(number: Any) -> bool:
    """A number that a float holds; what is larger is refused by PyTorch, in its words."""
    return isinstance(number, (float, int)) and -1e308 < number < 1e308


def _step(
    params: list[Tensor],
    grads: list[Tensor],
    exp_avgs: list[Tensor],
    exp_avg_sqs: list[Tensor],
    max_exp_avg_sqs: list[Tensor],
    state_steps: list[Tensor],
    grad_scale: Tensor | None = None,
    found_inf: Tensor | None = None,
    *,
    lr: Any,
    beta1: Any,
    beta2: Any,
    weight_decay: Any,
    eps: Any,
    amsgrad: bool,
    maximize: bool,
    decoupled_weight_decay: bool,
    **others: Any,
) -> bool:
    """False where the step must go PyTorch's way, which then says what is wrong, if anything is.

    All that is computed here is PyTorch's arithmetic, in its order.
    """
    if not params or params[0].device.type != "spmd" or not state_steps[0].is_cpu:
        return False
    if grad_scale is not None or found_inf is not None:
        return False
    if any(others.values()):  # capturable, differentiable, has_complex
        return False
    if not all(_is_plain(n) for n in (lr, beta1, beta2, weight_decay, eps)):
        return False
    if torch.compiler.is_compiling():
        return False
    if any(type(mode) is not DeviceContext for mode in _get_current_function_mode_stack()):
        return False
    step = state_steps[0].item() + 1
    correction1 = 1 - beta1**step
    correction2 = 1 - beta2**step
    if correction1 == 0 or correction2 < 0:
        return False
    return _C.step_adam(
        params,
        grads,
        exp_avgs,
        exp_avg_sqs,
        max_exp_avg_sqs,
        state_steps,
        step=step,
        maximize=bool(maximize),
        amsgrad=bool(amsgrad),
        shrink=1 - lr * weight_decay if weight_decay != 0 and decoupled_weight_decay else None,
        decay=weight_decay if weight_decay != 0 and not decoupled_weight_decay else None,
        first_weight=1 - beta1,
        beta2=beta2,
        second_weight=1 - beta2,
        root_correction=correction2**0.5,
        eps=eps,
        step_size=(lr / correction1) * -1,
    )
