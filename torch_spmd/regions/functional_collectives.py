# SPDX-License-Identifier: Apache-2.0
"""PyTorch's functional collectives (`torch.ops._c10d_functional`) inside of manual regions.

There, their group is the name of an axis, and they are the collectives along it. Each of the ops
gets a kernel for the dispatch key that every op under vmap passes, and for the device's autograd,
to which an op comes first under `torch.func.grad`: PyTorch has no derivatives of these ops, so they
are refused there. Outside of regions the kernels hand the call on.
"""

from __future__ import annotations

import contextlib
import functools
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import torch
from torch import Tensor

from torch_spmd import _C
from torch_spmd._compat import core, pyfunctorch
from torch_spmd._compat import functorch as _functorch
from torch_spmd.regions import manual
from torch_spmd.regions.collectives import (
    all_gather,
    all_to_all,
    pbroadcast,
    pmax,
    pmean,
    pmin,
    psum,
    psum_scatter,
)
from torch_spmd.regions.manual import manual_axis

DispatchKey, DispatchKeySet = core.DispatchKey, core.DispatchKeySet

_NAMESPACES = ("_c10d_functional", "_c10d_functional_autograd")
_KEYS = (DispatchKey.FuncTorchVmapMode, DispatchKey.AutogradPrivateUse1)
_AUTOCAST = functools.reduce(
    DispatchKeySet.__or__,
    (
        DispatchKeySet(key)
        for name, key in DispatchKey.__members__.items()
        if name.startswith("Autocast") and name != "AutocastFunctionality"
    ),
)
_libraries: list[torch.library.Library] = []  # which unregister kernels when they are dropped


@functools.cache
def register() -> None:
    """Registers the kernels, once per process."""
    for namespace in _NAMESPACES:
        library = torch.library.Library(namespace, "IMPL")
        _libraries.append(library)
        for full_name in core._dispatch_get_all_op_names():
            if not full_name.startswith(namespace + "::"):
                continue
            name, _, overload = full_name.partition("::")[2].partition(".")
            op = getattr(getattr(getattr(torch.ops, namespace), name), overload or "default")
            for key in _KEYS:
                kernel = functools.partial(_run, op, key)
                library.impl(op, kernel, key.name, with_keyset=True)


def _run(op: Any, key: Any, keys: Any, *args: Any, **kwargs: Any) -> Any:
    if not _C.entered_axes():
        return op.redispatch(keys.remove(key), *args, **kwargs)
    collective = of_torch(op)
    if manual.ON_LOCAL_SHAPES:
        if key == DispatchKey.FuncTorchVmapMode:
            return op.redispatch(keys.remove(key), *args, **kwargs)
        return collective(*args, **kwargs)
    if key != DispatchKey.FuncTorchVmapMode:
        raise NotImplementedError(
            f"{op}: PyTorch has no derivative of it, so it cannot be used under torch.func.grad "
            "and the like inside of a manual region; use spmd.lax.psum and the like there"
        )
    with _at_innermost_level():
        return collective(*args, **kwargs)


@contextlib.contextmanager
def _at_innermost_level() -> Iterator[None]:
    """A context in which ops begin at the innermost level of torch.func again, as those that the
    region's function calls do. While PyTorch runs a kernel, it excludes the keys of the levels, and
    the level knows that it is busy, so another one of the same number takes its place."""
    include = core._dispatch_tls_local_include_set().remove(DispatchKey.FuncTorchVmapMode)
    for key in (
        DispatchKey.FuncTorchDynamicLayerFrontMode,
        DispatchKey.FuncTorchDynamicLayerBackMode,
        DispatchKey.ADInplaceOrView,
    ):
        include = include.add(key)
    exclude = core._dispatch_tls_local_exclude_set() & _AUTOCAST  # those that are off
    with core._ForceDispatchKeyGuard(include, exclude):
        top = pyfunctorch.retrieve_current_functorch_interpreter()
        assert isinstance(top, pyfunctorch.VmapInterpreter)
        size, randomness = top.batch_size(), top.randomness()
        busy = _functorch.pop_dynamic_layer_stack()
        _functorch._vmap_increment_nesting(size, randomness)
        try:
            yield
        finally:
            _functorch._vmap_decrement_nesting()
            _functorch.push_dynamic_layer_stack(busy)


def of_torch(op: Any) -> Callable[..., Any]:
    """The collective along an axis that a functional collective is inside of a region.

    Errors: NotImplementedError for one that is none of these.
    """
    namespace, name = str(op).split(".")[:2]
    if name not in _OF_TORCH:
        raise NotImplementedError(
            f"{namespace}.{name} cannot be used in a manual region; there are "
            f"{', '.join(_OF_TORCH)}, and spmd.lax.psum and the like"
        )
    return _OF_TORCH[name]


def _reduced(t: Tensor, reduce_op: str, group_name: str) -> Any:
    kinds = {"sum": psum, "avg": pmean, "max": pmax, "min": pmin}
    if reduce_op not in kinds:
        raise ValueError(f"all_reduce: reduce_op must be one of {list(kinds)}; got {reduce_op!r}")
    return kinds[reduce_op](t, group_name)


def _gathered(t: Tensor, group_size: int, group_name: str) -> Any:
    _check_group("all_gather_into_tensor", group_size, group_name)
    return all_gather(t, group_name, tiled=True)


def _scattered(t: Tensor, reduce_op: str, group_size: int, group_name: str) -> Any:
    _check_group("reduce_scatter_tensor", group_size, group_name)
    if reduce_op not in ("sum", "avg"):
        raise ValueError(f"reduce_scatter_tensor: reduce_op must be sum or avg; got {reduce_op!r}")
    total = psum_scatter(t, group_name, tiled=True)
    return total / group_size if reduce_op == "avg" else total


def _exchanged(t: Tensor, outputs: Sequence[int], inputs: Sequence[int], group_name: str) -> Any:
    each = manual_axis("all_to_all_single", group_name)
    if not list(outputs) == list(inputs) == [t.shape[0] // each.size] * each.size:
        raise ValueError(
            "all_to_all_single: in a manual region all parts have the same size; got "
            f"output_split_sizes {list(outputs)} and input_split_sizes {list(inputs)}"
        )
    return all_to_all(t, group_name, 0, 0, tiled=True)


def _check_group(caller: str, group_size: int, group_name: str) -> None:
    size = manual_axis(caller, group_name).size
    if group_size != size:
        raise ValueError(
            f"{caller}: group_size is {group_size}, but axis {group_name!r} has {size} devices"
        )


_OF_TORCH: dict[str, Callable[..., Any]] = {
    "all_gather_into_tensor": _gathered,
    "all_reduce": _reduced,
    "all_reduce_coalesced": _reduced,
    "all_to_all_single": _exchanged,
    "broadcast": lambda t, src, group_name: pbroadcast(t, group_name, src),
    "reduce_scatter_tensor": _scattered,
    "wait_tensor": lambda t: t,
    "_wrap_tensor_autograd": lambda t: t,
}
