# SPDX-License-Identifier: Apache-2.0
"""Marks of parameters that PyTorch replaces in Python: they pass to the new ones."""

from __future__ import annotations

import functools
import warnings
from typing import Any

import torch
from torch import Tensor

from torch_spmd import _C, _compat
from torch_spmd._replace import replace
from torch_spmd.device import hooks
from torch_spmd.sharding import ops
from torch_spmd.sharding.marks import sharding_of


@functools.cache
def install() -> None:
    """Passes marks on where a tensor is replaced in Python alone; C++ sees all other cases.

    load_state_dict(assign=True) and `module.weight = …` register a parameter or buffer where
    another was; module.cpu(), module.half() on the CPU and the like replace parameters.
    """
    from torch.nn.modules import module as modules

    def keep(old: Tensor, new: Tensor, caller: str) -> None:
        if (
            not hooks.in_forked_child()
        ):  # where the device is not used, and its lock may be taken for ever
            _C.keep_mark(old, new, caller)

    def replaces(old: Any, new: Any) -> None:
        if isinstance(old, Tensor) and isinstance(new, Tensor) and old is not new:
            keep(old, new, "assignment to a module")

    def parameter(module: torch.nn.Module, name: str, new: Any) -> None:
        replaces(_compat.parameters(module).get(name), new)

    def buffer(module: torch.nn.Module, name: str, new: Any) -> None:
        replaces(_compat.buffers(module).get(name), new)

    modules.register_module_parameter_registration_hook(parameter)
    modules.register_module_buffer_registration_hook(buffer)

    compatible = _compat.REPLACING_PARAMETERS.current()

    @functools.wraps(compatible)
    def compatible_with_marks(old: Tensor, new: Tensor) -> bool:
        keep(old, new, "module conversion")  # asked by nn.Module before it replaces a tensor
        _warn_if_marks_leave(old, new)
        return compatible(old, new)

    why = "marks hold when a module is converted on the host"
    replace(*_compat.REPLACING_PARAMETERS, compatible_with_marks, why)


_warned = False


def _warn_if_marks_leave(old: Tensor, new: Tensor) -> None:
    """On the host a module computes everything itself, without a word, which is seldom what a
    script means that marked it: trainers choose the CPU where they do not find the device."""
    global _warned
    if _warned or old.device.type != "spmd" or new.device.type != "cpu":
        return
    if old.layout != torch.strided:
        return
    if (
        hooks.in_forked_child()
        or torch.nn.parameter.is_lazy(old)
        or ops.is_traced(old)
        or not sharding_of(old).is_committed
    ):
        return
    _warned = True
    warnings.warn(
        "a module with marks has moved to the host, where it is not sharded; they hold again when "
        "it moves back to 'spmd'. If a trainer moved it, it has not found the device: call "
        "spmd.integrations.accelerate() or spmd.integrations.transformers() before it is made",
        stacklevel=6,
    )
