# SPDX-License-Identifier: Apache-2.0
"""The device names "xla" and "xla:0" mean the device `spmd`.

A call that names the device where PyTorch makes a tensor (`torch.zeros(2, device="xla")`) reaches
PyTorch's dispatcher with the key XLA, for which this process has no kernels; a fallback for it
calls the same op with the device `spmd`. A few functions ask the device for a guard before the
dispatcher sees them, or should return their argument where nothing is to do (`Tensor.to`): they are
wrapped.
"""

from __future__ import annotations

import functools
import os
from typing import Any

import torch
from torch import Tensor

import torch_spmd as spmd
from torch_spmd import _C, _compat
from torch_spmd.torch_xla import _counts

XLA = torch.device("xla", 0)  # what the functions of torch_xla return
SPMD = torch.device("spmd", 0)  # where tensors are

_LIKE = (
    "empty_like", "full_like", "ones_like", "rand_like", "randint_like", "randn_like", "zeros_like",
)  # fmt: skip

_libraries: list[Any] = []  # a registration lives as long as its library


def is_xla(value: Any) -> bool:
    """Whether a value names the device: "xla", "xla:0" or such a torch.device."""
    if isinstance(value, str):
        return value == "xla" or value.startswith("xla:")
    return isinstance(value, torch.device) and value.type == "xla"


def renamed(value: Any) -> Any:
    """The device `spmd` for a name of the device "xla", else the value.

    Errors: RuntimeError for an index other than 0.
    """
    if not is_xla(value):
        return value
    device = torch.device(value)
    if device.index not in (None, 0):
        raise RuntimeError(
            f"{value!s} was given, but with SPMD there is one logical device, 'xla:0'; the devices "
            "of a mesh are chosen by mark_sharding"
        )
    return SPMD


def install() -> None:
    """Makes PyTorch accept the names. Called once."""
    if _libraries:
        return
    count = os.environ.get("CPU_NUM_DEVICES")
    if count and "SPMD_NUM_DEVICES" not in os.environ:
        spmd.config.set_backend(_C.backend_name(), int(count))
    os.environ.setdefault("PJRT_DEVICE", "CPU")
    library = torch.library.Library("_", "IMPL")
    library.fallback(_with_spmd, "XLA")
    _libraries.append(library)
    _send_factories()
    counted = ("tensor", "as_tensor", "asarray", "scalar_tensor")
    constructors = _compat.device_constructors()  # cached, as they are now
    names = {getattr(f, "__name__", "") for f in constructors} | set(_LIKE) | set(counted)
    for name in sorted(names):
        function = getattr(torch, name, None)
        if function is not None and (function in constructors or name in (*_LIKE, *counted)):
            wrapper = (_wrapped if name in counted else _named)(function)
            wrapper.__module__, wrapper.__qualname__ = "torch", name  # it is pickled by these
            setattr(torch, name, wrapper)
            _compat.keep_for_jit(function, wrapper)
    Tensor.new_tensor = _wrapped(Tensor.new_tensor)  # type: ignore[method-assign]
    for name in ("new_empty", "new_full", "new_ones", "new_zeros"):
        setattr(Tensor, name, _named(getattr(Tensor, name)))
    _wrap_moves()
    _wrap_contexts()
    _accept_float_classes()
    _promote_in_einsum()
    _wrap_reads()
    if not hasattr(torch, "xla"):
        _compat.top._register_device_module("xla", torch.spmd)  # type: ignore[attr-defined]


def _with_spmd(op: Any, *args: Any, **kwargs: Any) -> Any:
    """The kernel of every op for the key XLA."""
    return op(*map(renamed, args), **{name: renamed(value) for name, value in kwargs.items()})


def _send_factories() -> None:
    """Sends the ops that make tensors and for which the device `spmd` has a kernel to that. The
    fallback does not see them, since PyTorch has a kernel for all devices."""
    aten = torch.library.Library("aten", "IMPL")
    _libraries.append(aten)
    for name in _compat.core._dispatch_get_all_op_names():
        if not name.startswith("aten::"):
            continue
        if not _compat.core._dispatch_has_kernel_for_dispatch_key(name, "PrivateUse1"):
            continue
        packet, _, overload = name.removeprefix("aten::").partition(".")
        op = getattr(getattr(torch.ops.aten, packet), overload or "default")
        arguments = op._schema.arguments
        if any(argument.name == "device" for argument in arguments) and not any(
            argument.type.kind() == "TensorType" for argument in arguments
        ):
            aten.impl(name.removeprefix("aten::"), functools.partial(_with_spmd, op), "XLA")


def _named(function: Any) -> Any:
    """The function for the device `spmd`. Without it, a function that torch.compile traces makes a
    fake tensor on "xla", which meets others of "spmd"."""

    @functools.wraps(function)
    def with_name(*args: Any, **kwargs: Any) -> Any:
        if is_xla(kwargs.get("device")):
            kwargs["device"] = renamed(kwargs["device"])
        return function(*args, **kwargs)

    return with_name


def _wrapped(function: Any) -> Any:
    @functools.wraps(function)
    def with_names(*args: Any, **kwargs: Any) -> Any:
        if is_xla(kwargs.get("device")):
            kwargs["device"] = renamed(kwargs["device"])
            result = function(*args, **kwargs)
            _counts.sent(result)
            return result
        return function(*args, **kwargs)

    return with_names


def _wrap_moves() -> None:
    to, cpu = Tensor.to, Tensor.cpu

    @functools.wraps(to)
    def to_with_names(self: Tensor, *args: Any, **kwargs: Any) -> Tensor:
        if args and is_xla(args[0]):
            args = (renamed(args[0]), *args[1:])
        elif is_xla(kwargs.get("device")):
            kwargs["device"] = renamed(kwargs["device"])
        result = to(self, *args, **kwargs)
        _counts.moved(self, result)
        return result

    @functools.wraps(cpu)
    def cpu_counted(self: Tensor, *args: Any, **kwargs: Any) -> Tensor:
        result = cpu(self, *args, **kwargs)
        _counts.moved(self, result)
        return result

    Tensor.to = to_with_names  # type: ignore[method-assign, assignment]
    Tensor.cpu = cpu_counted  # type: ignore[method-assign, assignment]


def _wrap_contexts() -> None:
    """`with torch.device("xla"):`, `torch.set_default_device`, and what autocast is told."""
    context = _compat.device_context()
    init = context.__init__

    @functools.wraps(init)
    def with_device(self: Any, device: Any) -> None:
        init(self, renamed(device))

    context.__init__ = with_device

    autocast = torch.amp.autocast_mode.autocast
    autocast_init = autocast.__init__

    @functools.wraps(autocast_init)
    def with_type(self: Any, device_type: str, *args: Any, **kwargs: Any) -> None:
        autocast_init(self, _type(device_type), *args, **kwargs)

    autocast.__init__ = with_type  # type: ignore[method-assign]

    for name in ("is_autocast_enabled", "get_autocast_dtype"):
        asked = getattr(torch, name)

        @functools.wraps(asked)
        def of_type(*args: Any, _asked: Any = asked) -> Any:
            return _asked(*map(_type, args))

        setattr(torch, name, of_type)


def _wrap_reads() -> None:
    """`torch.load(…, map_location="xla")`, and `t.is_xla` of a tensor on the device."""
    restore = torch.serialization.default_restore_location
    torch.serialization.register_package(
        50,
        lambda storage: None,  # a storage is saved as one of the device `spmd`
        lambda storage, place: restore(storage, str(renamed(place))) if is_xla(place) else None,
    )
    Tensor.is_xla = property(  # type: ignore[attr-defined]
        lambda self: self.device.type == "spmd", doc="Whether the tensor is on the device."
    )


def _accept_float_classes() -> None:
    """Numbers of classes may be of a floating type, as they may be on torch_xla's device."""
    functional = torch.nn.functional
    for name in ("cross_entropy", "nll_loss"):
        loss = getattr(functional, name)

        @functools.wraps(loss)
        def with_classes(
            input: Tensor, target: Tensor, *args: Any, _loss: Any = loss, **kwargs: Any
        ) -> Tensor:
            classes = input.dim() != target.dim() and target.is_floating_point()
            if classes and target.device.type == "spmd":
                target = target.long()
            return _loss(input, target, *args, **kwargs)

        setattr(functional, name, with_classes)


_of_einsum = torch.library.Library("aten", "IMPL")


def _promote_in_einsum() -> None:
    """Operands of `torch.einsum` may have different types, as they may on torch_xla's device."""
    op = torch.ops.aten.einsum.default

    def einsum(equation: str, tensors: list[Tensor], path: list[int] | None = None) -> Tensor:
        kinds = {t.dtype for t in tensors}
        if len(kinds) > 1:
            wide = functools.reduce(torch.promote_types, kinds)
            tensors = [t.to(wide) for t in tensors]
        return op.decompose(equation, tensors, path=path)

    for key in ("AutogradPrivateUse1", "PrivateUse1"):
        _of_einsum.impl("einsum", einsum, key)


def _type(device_type: Any) -> Any:
    return "spmd" if device_type == "xla" else device_type
