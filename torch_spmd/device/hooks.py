# SPDX-License-Identifier: Apache-2.0
"""Hooks into PyTorch's Python half: printing, copies, forks, the exit."""

from __future__ import annotations

import os
import sys
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
