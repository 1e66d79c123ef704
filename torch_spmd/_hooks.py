# SPDX-License-Identifier: Apache-2.0
"""Hooks into PyTorch's Python half: printing, copies, forks, the exit."""

from __future__ import annotations

import functools
import os
import sys
from typing import Any

import torch
import torch._tensor_str
import torch.utils.dlpack
from torch import Tensor

from torch_spmd import _moves

OutOfMemoryError = torch.OutOfMemoryError
"""A program does not fit a device's memory; raised before anything runs."""

_forked = False


def install() -> None:
    """Installs every hook. Called once."""
    _print_from_the_host()
    _refuse_dlpack()
    _refuse_sharing()
    _copy_between_processes()
    _refuse_data_parallel()
    _keep_marks()
    _keep_no_host_cache()
    _moves.install()
    os.register_at_fork(after_in_child=_note_fork)


def _keep_no_host_cache() -> None:
    """`torch.accelerator.empty_host_cache` asks an allocator of pinned memory, which the device has
    not, and would end the process."""
    functions: Any = torch._C
    empty = getattr(functions, "_accelerator_emptyHostCache", None)
    if empty is None:
        return

    @functools.wraps(empty)
    def checked() -> None:
        if torch._C._get_accelerator().type != "spmd":
            empty()

    functions._accelerator_emptyHostCache = checked


def in_forked_child() -> bool:
    return _forked


def _note_fork() -> None:
    global _forked
    _forked = True


def _print_from_the_host() -> None:
    """Prints from a host copy, which takes one cut, since formatting reads elements one by one."""
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
            if isinstance(tensor, Tensor) and tensor.device.type == "spmd":
                raise BufferError(
                    "to_dlpack: the tensor is on 'spmd', whose values are tiles on the devices of "
                    "a mesh; export a host copy: tensor.cpu()"
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


def _refuse_sharing() -> None:
    """Refuses to share memory. PyTorch would treat other devices' memory as shared, or say only
    that it is not the CPU's."""

    def refusing(name: str, function: Any) -> Any:
        @functools.wraps(function)
        def checked(storage: torch.UntypedStorage, *args: Any, **kwargs: Any) -> Any:
            if storage.device.type == "spmd":
                raise NotImplementedError(
                    f"{name}: the tensor is on 'spmd', whose values are tiles that belong to "
                    "this process; share a host copy, and move it to 'spmd' where it is used: "
                    "tensor.cpu().share_memory_()"
                )
            return function(storage, *args, **kwargs)

        return checked

    storages = torch.UntypedStorage
    for method, name in (
        ("share_memory_", "share_memory_"),
        ("_share_fd_cpu_", "torch.multiprocessing"),
        ("_share_filename_cpu_", "torch.multiprocessing"),
    ):
        setattr(storages, method, refusing(name, getattr(storages, method)))
    is_shared = storages.is_shared

    def checked_is_shared(self: torch.UntypedStorage, *args: Any, **kwargs: Any) -> bool:
        return self.device.type != "spmd" and is_shared(self, *args, **kwargs)

    storages.is_shared = checked_is_shared  # type: ignore[assignment, method-assign]


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
        marks = torch._utils.get_tensor_metadata(tensor)
        is_parameter = isinstance(tensor, torch.nn.Parameter)
        host = tensor.detach().cpu()
        return _received, (host, marks, tensor.requires_grad, is_parameter)

    kinds: Any = (*torch._tensor_classes, Tensor, torch.nn.Parameter)
    for kind in kinds:
        ForkingPickler.register(kind, reduce)


def _received(
    host: Tensor, marks: dict[str, bool], requires_grad: bool, is_parameter: bool
) -> Tensor:
    """Called by pickle in the process that receives a tensor."""
    torch._utils.set_tensor_metadata(host, marks)
    tensor = host.to("spmd")
    if is_parameter:
        return torch.nn.Parameter(tensor, requires_grad)
    return tensor.requires_grad_(requires_grad)


def _refuse_data_parallel() -> None:
    """Refuses the wrapper before it asks for a process group."""
    wrapper = torch.nn.parallel.DistributedDataParallel
    init = wrapper.__init__

    @functools.wraps(init)
    def checked(self: Any, module: torch.nn.Module, *args: Any, **kwargs: Any) -> None:
        if isinstance(module, torch.nn.Module) and any(
            p.device.type == "spmd" for p in module.parameters()
        ):
            raise NotImplementedError(
                "DistributedDataParallel: the module is on 'spmd', where one process holds all "
                "devices of a mesh; use the module itself and mark the batch, "
                'spmd.mark_sharding(x, mesh, ("data", None)): gradients are then all-reduced by '
                "themselves"
            )
        init(self, module, *args, **kwargs)

    wrapper.__init__ = checked  # type: ignore[method-assign]


def _keep_marks() -> None:
    """Passes marks on where a tensor is replaced in Python alone; C++ sees all other cases.

    load_state_dict(assign=True) and `module.weight = …` register a parameter or buffer where
    another was; swap_tensors exchanges two; module.half() and the like may do so on the CPU or with
    tensors of 'meta'; torch.load makes tensors of files on the host, too.
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
        replaces(module._parameters.get(name), new)

    def buffer(module: torch.nn.Module, name: str, new: Any) -> None:
        replaces(module._buffers.get(name), new)

    modules.register_module_parameter_registration_hook(parameter)
    modules.register_module_buffer_registration_hook(buffer)

    swap = torch.utils.swap_tensors

    @functools.wraps(swap)
    def swap_with_marks(t1: Tensor, t2: Tensor) -> None:
        if isinstance(t1, Tensor) and isinstance(t2, Tensor):
            keep(t1, t2, "swap_tensors")
        swap(t1, t2)

    torch.utils.swap_tensors = swap_with_marks

    compatible = torch._has_compatible_shallow_copy_type

    @functools.wraps(compatible)
    def compatible_with_marks(old: Tensor, new: Tensor) -> bool:
        keep(old, new, "module conversion")  # asked by nn.Module before it replaces a tensor
        _moves.replaced(old, new)
        return compatible(old, new)

    torch._has_compatible_shallow_copy_type = compatible_with_marks  # type: ignore[assignment]

    set_metadata = torch._utils.set_tensor_metadata

    @functools.wraps(set_metadata)
    def set_with_mark(tensor: Tensor, metadata: dict[str, bool]) -> None:
        set_metadata(tensor, metadata)
        if tensor.device.type != "spmd" and not _forked:
            for text in metadata:
                _C.give_saved_mark(tensor, text)

    torch._utils.set_tensor_metadata = set_with_mark


def at_exit() -> None:
    """Runs a step that still waits, which may fail; ends together with the other processes of the
    job, and drops what is pending."""
    if _forked:
        return
    from torch_spmd import _C

    job = sys.modules.get("torch_spmd._job")
    try:
        if job is not None:
            job.leave()
        elif not hasattr(sys, "last_value"):  # the script has not ended with an exception
            _C.run_waiting_step()
    finally:
        _C.shutdown()
