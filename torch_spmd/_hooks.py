# SPDX-License-Identifier: Apache-2.0
"""Where torch_spmd listens in on PyTorch's Python half: printing, optimizers, forks, the exit."""

from __future__ import annotations

import functools
import os
import time
from typing import Any

import torch
import torch._tensor_str
import torch.utils.dlpack
from torch import Tensor
from torch.optim.optimizer import register_optimizer_step_post_hook

OutOfMemoryError = torch.OutOfMemoryError
"""A program does not fit a device's memory; raised before anything runs."""

_forked = False


def install() -> None:
    """Installs every hook. Called once."""
    _print_from_the_host()
    _refuse_dlpack()
    _copy_marks()
    register_optimizer_step_post_hook(_after_step)
    os.register_at_fork(after_in_child=_note_fork)


def in_forked_child() -> bool:
    return _forked


def _note_fork() -> None:
    global _forked
    _forked = True


def _print_from_the_host() -> None:
    """Printing formats elements one by one; do that on a host copy, which takes one cut."""
    format_elements = torch._tensor_str._tensor_str

    def on_host(self: Tensor, indent: int) -> str:
        if self.device.type == "spmd":
            self = self.detach().cpu()
        return format_elements(self, indent)

    torch._tensor_str._tensor_str = on_host


def _refuse_dlpack() -> None:
    """A storage of the device has no memory that another library could read."""

    def refusing(function: Any) -> Any:
        @functools.wraps(function)
        def checked(tensor: Tensor, *args: Any, **kwargs: Any) -> Any:
            if tensor.device.type == "spmd":
                raise BufferError(
                    "to_dlpack: the tensor is on 'spmd', whose values lie in tiles on devices of a "
                    "mesh; export a host copy: tensor.cpu()"
                )
            return function(tensor, *args, **kwargs)

        return checked

    for owner, name in (
        (torch.Tensor, "__dlpack__"),
        (torch.Tensor, "__dlpack_device__"),
        (torch.utils.dlpack, "to_dlpack"),
        (torch, "to_dlpack"),
    ):
        setattr(owner, name, refusing(getattr(owner, name)))


def _copy_marks() -> None:
    """A deep copy of a parameter is a clone, to which PyTorch gives nothing of the storage."""
    deepcopy = torch.nn.Parameter.__deepcopy__

    def with_mark(self: torch.nn.Parameter, memo: dict[int, Any]) -> Any:
        known = id(self) in memo
        copy = deepcopy(self, memo)
        if not known and self.device.type == "spmd":
            from torch_spmd.tensors import mark_sharding, sharding_of

            sharding = sharding_of(self)
            if sharding is not None and sharding.is_committed:
                mark_sharding(copy, sharding.mesh, sharding.spec)
        return copy

    torch.nn.Parameter.__deepcopy__ = with_mark  # type: ignore[assignment, method-assign]


def _after_step(optimizer: torch.optim.Optimizer, args: Any, kwargs: Any) -> None:
    from torch_spmd import _C

    _C.optimizer_stepped()


def at_exit() -> None:
    """Drops what is pending, and lets autograd's device thread come to rest.

    A thread that returns from backward still has Python objects to release; if the interpreter is
    finalized under it, it ends the process with an abort. It needs the GIL for an instant only.
    """
    if _forked:
        return
    from torch_spmd import _C

    _C.shutdown()
    if _C.statistics()["records"]:
        time.sleep(0.05)
