# SPDX-License-Identifier: Apache-2.0
"""Functions whose results are computed again in the backward pass, in manual regions, too."""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any

from torch import Tensor
from torch.utils.checkpoint import checkpoint

from torch_spmd import _arguments
from torch_spmd._compat import core, pyfunctorch, pytree
from torch_spmd._compat import functorch as _functorch
from torch_spmd.regions.manual import ManualAxis, entered, entered_again, varies


def remat(f: Callable[..., Any]) -> Callable[..., Any]:
    """A function that keeps only its arguments for the backward pass, and computes `f` again in it.

    It is `torch.utils.checkpoint.checkpoint(f, …, use_reentrant=False)`, and it also works inside
    of manual regions, where that does not. Collectives of `f` are sent again.

    Errors: TypeError if `f` is not a function; RuntimeError inside of `torch.vmap` or a derivative
    of `torch.func` that is itself inside of a manual region, or around it.

    Example:
        >>> import torch, torch_spmd as spmd
        >>> from torch_spmd import P
        >>> mesh = spmd.make_mesh((4,), ("x",))
        >>> layer = spmd.lax.remat(lambda t: torch.tanh(t) / spmd.lax.psum(t.exp(), "x"))
        >>> f = spmd.shard_map(layer, mesh, P("x", None), P("x", None))
        >>> t = torch.zeros(4, 2, device="spmd", requires_grad=True)
        >>> f(t).sum().backward()
        >>> t.grad[0].tolist()
        [0.25, 0.25]
    """
    if not callable(f):
        raise TypeError(f"remat: f must be a function; got {_arguments.shown(f)}")

    @functools.wraps(f)
    def again(*args: Any, **kwargs: Any) -> Any:
        axes = entered()
        if not axes:
            return checkpoint(f, *args, use_reentrant=False, **kwargs)
        return _in_region(f, axes, args, kwargs)

    return again


def _in_region(f: Callable[..., Any], axes: list[ManualAxis], args: Any, kwargs: Any) -> Any:
    """Leaves the levels of vmap that the axes are, and enters them again in the function that is
    checkpointed: when it runs in the backward pass, they are left long since."""
    if axes[0].is_local:
        from torch_spmd.regions import local_shapes

        def inside(*args: Any, **kwargs: Any) -> Any:
            with local_shapes.entered_again(axes):
                return f(*args, **kwargs)

        return checkpoint(inside, *args, use_reentrant=False, **kwargs)
    if len(pyfunctorch.retrieve_all_functorch_interpreters()) != len(axes):
        raise RuntimeError(
            "remat: in a manual region there can be no torch.vmap, torch.func.grad or the like "
            "between the region and remat, nor around the region; put remat around them"
        )
    leaves, form = pytree.tree_flatten((args, kwargs))
    apart = [_left(leaf, axes) for leaf in leaves]
    batched = [names for _, names in apart]
    forms: list[Any] = []
    with pyfunctorch.temporarily_clear_interpreter_stack() as levels:

        def whole(*leaves: Any) -> list[Any]:
            restored = pyfunctorch.temporarily_restore_interpreter_stack(levels)
            with restored, entered_again(axes), core._EnableTorchFunction():
                inner = [_entered(leaf, names, axes) for leaf, names in zip(leaves, batched)]
                args, kwargs = pytree.tree_unflatten(inner, form)
                results, result_form = pytree.tree_flatten(f(*args, **kwargs))
                parts = [_left(result, axes) for result in results]
            forms[:] = [result_form, [names for _, names in parts]]
            return [result for result, _ in parts]

        with core.DisableTorchFunction():  # whose modes are about shards
            results = checkpoint(whole, *(leaf for leaf, _ in apart), use_reentrant=False)
    result_form, names = forms
    inner = [_entered(result, n, axes) for result, n in zip(results, names)]
    return pytree.tree_unflatten(inner, result_form)


def _left(t: Any, axes: list[ManualAxis]) -> tuple[Any, list[str]]:
    """The tensor with the axes along which it varies as its first dimensions, and their names."""
    names: list[str] = []
    if isinstance(t, Tensor):
        for axis in reversed(axes):
            if varies(t, axis):
                t = _functorch._remove_batch_dim(t, axis.level, axis.size, 0)
                names.insert(0, axis.name)
    return t, names


def _entered(t: Any, names: list[str], axes: list[ManualAxis]) -> Any:
    """The inverse of `_left`."""
    for axis in axes:
        if axis.name in names:
            t = _functorch._add_batch_dim(t, 0, axis.level)
    return t
