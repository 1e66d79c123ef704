# SPDX-License-Identifier: Apache-2.0
"""`scan`: a function over the first dimension of tensors, with a value that is carried along."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
import torch.utils.checkpoint
from torch import Tensor

from torch_spmd._compat import pytree


def scan(
    fn: Callable[[Any, Any], tuple[Any, Any]],
    init: Any,
    xs: Any,
    partition_fn: Callable[..., Any] | None = None,
    is_fn_pure: bool = False,
) -> tuple[Any, Any]:
    """Calls `carry, y = fn(carry, x)` for each entry of `xs` along dimension 0, and stacks the `y`.

    Ops are recorded in each iteration: the loop is unrolled, and gradients are those of a loop in
    Python. What `fn` writes in place into the carried tensors stays inside of the iteration.

    Args:
        fn: gets trees of tensors, and returns a carried tree of the same shape, and a tree.
        init: the tree that the first call gets.
        xs: a tree of tensors whose dimension 0 has one size.
        partition_fn: None, or functorch's `default_partition`: values are kept for the backward
            pass. Any other one: each iteration is computed again in the backward pass, whatever
            the function would have kept.
        is_fn_pure: no effect.

    Returns the last carried tree, and the tree of stacked `y`; what is not a tensor there is None.

    Errors: ValueError if `fn` cannot be called, if `xs` has no tensor, or tensors of different
    sizes along dimension 0, or if `fn` returns no pair, or a carried tree of another shape.

    Example:
        >>> import torch, torch_spmd
        >>> from torch_spmd.torch_xla.experimental.scan import scan
        >>> xs = torch.arange(3.0, device="spmd")
        >>> total, sums = scan(lambda total, x: (total + x, total + x), xs[0], xs)
        >>> sums.tolist()
        [0.0, 1.0, 3.0]
    """
    if not callable(fn):
        raise ValueError(f"scan: `fn` must be callable; got {fn!r}")
    step = _recomputed(fn) if is_recomputed(partition_fn) else fn
    leaves, structure = pytree.tree_flatten(xs)
    count = _count(leaves)
    carry, ys = init, []
    for i in range(count):
        x = pytree.tree_unflatten([leaf if leaf is None else leaf[i] for leaf in leaves], structure)
        carry, y = _checked(step(_copied(carry), x), carry)
        ys.append(y)
    return carry, _stacked(ys)


def is_recomputed(partition_fn: Callable[..., Any] | None) -> bool:
    """Whether this partitioning of forward and backward pass is not the default."""
    if partition_fn is None:
        return False
    from functorch.compile import default_partition  # type: ignore[import-untyped]

    return partition_fn is not default_partition


def _recomputed(fn: Callable[[Any, Any], Any]) -> Callable[[Any, Any], Any]:
    def step(carry: Any, x: Any) -> Any:
        return torch.utils.checkpoint.checkpoint(fn, carry, x, use_reentrant=False)

    return step


def _count(leaves: list[Any]) -> int:
    tensors = [leaf for leaf in leaves if leaf is not None]
    counts = {
        leaf.shape[0] if isinstance(leaf, Tensor) and leaf.dim() else None for leaf in tensors
    }
    if len(counts) != 1 or None in counts:
        shown = ", ".join(
            str(tuple(t.shape)) if isinstance(t, Tensor) else repr(t) for t in tensors
        )
        raise ValueError(
            "scan: `xs` must have at least one tensor, and all tensors the same leading dimension "
            f"size; got {shown or 'none'}"
        )
    (count,) = counts
    return int(count or 0)


def _copied(tree: Any) -> Any:
    return pytree.tree_map(lambda t: t.clone() if isinstance(t, Tensor) else t, tree)


def _checked(result: Any, carry: Any) -> tuple[Any, Any]:
    if not isinstance(result, tuple) or len(result) != 2:
        raise ValueError(f"scan: `fn` must return (carry, y); got {type(result).__name__}")
    got, wanted = pytree.tree_structure(result[0]), pytree.tree_structure(carry)
    if got != wanted:
        raise ValueError(
            f"scan: `fn` got a carry of structure {wanted} and returned one of {got}; return the "
            "structure of `init`"
        )
    return result


def _stacked(ys: list[Any]) -> Any:
    """One tree of stacked leaves; copies, since a carried tensor may be written later."""
    if not ys:
        return None
    columns = zip(*(pytree.tree_leaves(y) for y in ys))
    stacked = [torch.stack(column) if column[0] is not None else None for column in columns]
    return pytree.tree_unflatten(stacked, pytree.tree_structure(ys[0]))
