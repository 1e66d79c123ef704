# SPDX-License-Identifier: Apache-2.0
"""Hooks into PyTorch's Python half: printing, copies, forks, the exit."""

from __future__ import annotations

import functools
import os
import sys
import warnings
from typing import Any

import torch
from torch import Tensor

from torch_spmd import _compat
from torch_spmd._replace import replace

OutOfMemoryError = torch.OutOfMemoryError
"""A program does not fit a device's memory; raised before anything runs."""

_forked = False


def install() -> None:
    """Installs every hook. Called once."""
    _print_from_the_host()
    _copy_between_processes()
    _keep_marks()
    os.register_at_fork(after_in_child=_note_fork)


def in_forked_child() -> bool:
    return _forked


def _note_fork() -> None:
    global _forked
    _forked = True


def _print_from_the_host() -> None:
    """Prints from a host copy, which takes one cut, since formatting reads elements one by one."""
    format_elements = _compat.PRINTING.current()

    def on_host(self: Tensor, indent: int) -> str:
        if self.device.type == "spmd":
            self = self.detach().cpu()
        return format_elements(self, indent)

    why = "print(x) reads a tensor once, and not once an element"
    replace(*_compat.PRINTING, on_host, why)


def _copy_between_processes() -> None:
    """A tensor that torch.multiprocessing sends, as a spawned worker of a DataLoader does, arrives
    as a copy with its mark.

    PyTorch would pickle its storage, in a thread of the queue which only prints what is raised, and
    the process that waits for the tensor would wait for ever.
    """
    from multiprocessing.reduction import ForkingPickler

    from torch.multiprocessing import reductions

    def reduce(tensor: Tensor) -> Any:
        if tensor.device.type != "spmd":
            return reductions.reduce_tensor(tensor)
        if tensor.requires_grad and not tensor.is_leaf:
            raise RuntimeError(
                "torch.multiprocessing: the tensor requires grad and is not a leaf, and autograd "
                "does not cross processes; send tensor.detach()"
            )
        marks = _compat.utils.get_tensor_metadata(tensor)
        is_parameter = isinstance(tensor, torch.nn.Parameter)
        host = tensor.detach().cpu()
        return _received, (host, marks, tensor.requires_grad, is_parameter)

    kinds: Any = (*_compat.top._tensor_classes, Tensor, torch.nn.Parameter)
    for kind in kinds:
        ForkingPickler.register(kind, reduce)


def _received(
    host: Tensor, marks: dict[str, bool], requires_grad: bool, is_parameter: bool
) -> Tensor:
    """Called by pickle in the process that receives a tensor."""
    from torch_spmd import _C

    for text in marks:
        _C.give_saved_mark(host, text)
    tensor = host.to("spmd")
    if is_parameter:
        return torch.nn.Parameter(tensor, requires_grad)
    return tensor.requires_grad_(requires_grad)


def _keep_marks() -> None:
    """Passes marks on where a tensor is replaced in Python alone; C++ sees all other cases.

    load_state_dict(assign=True) and `module.weight = …` register a parameter or buffer where
    another was; module.cpu(), module.half() on the CPU and the like replace parameters.
    """
    from torch.nn.modules import module as modules

    from torch_spmd import _C

    def keep(old: Tensor, new: Tensor, caller: str) -> None:
        if not _forked:  # where the device is not used, and its lock may be taken for ever
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
    from torch_spmd.sharding import ops
    from torch_spmd.sharding.tensors import sharding_of

    if (
        _forked
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


def at_exit() -> None:
    """Runs a step that still waits, which may fail; ends together with the other processes of the
    job, and drops what is pending."""
    if _forked:
        return
    from torch_spmd import _C

    job = sys.modules.get("torch_spmd.processes.job")
    try:
        if job is not None:
            job.leave()
        elif not hasattr(sys, "last_value"):  # the script has not ended with an exception
            _C.run_waiting_step()
    finally:
        _C.shutdown()
