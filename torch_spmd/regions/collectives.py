# SPDX-License-Identifier: Apache-2.0
"""The collectives of manual regions (`shard_map`), with the names and meanings of `jax.lax`.

Each takes a tensor or a tree of tensors and the name of a manual axis. A value that does not vary
along the axis counts as the same value on each device.
"""

from __future__ import annotations

import functools
import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import Tensor
from torch.overrides import handle_torch_function, has_torch_function_unary

from torch_spmd import _C, _arguments
from torch_spmd._compat import functorch as _functorch
from torch_spmd._compat import pytree
from torch_spmd.regions import manual
from torch_spmd.regions.manual import ManualAxis, manual_axis, varies


def psum(x: Any, axis_name: Any) -> Any:
    """The sum over the devices along the axis, or along a tuple of axes; it does not vary. A number
    counts as the same on each device: `psum(1, "x")` is the number of devices.

    Errors: ValueError outside of a region with that axis.

    Example:
        >>> import torch, torch_spmd as spmd
        >>> mesh = spmd.make_mesh((4,), ("x",))
        >>> f = spmd.shard_map(
        ...     lambda t: spmd.lax.psum(t, "x"), mesh, spmd.P("x"), spmd.P(None)
        ... )
        >>> f(torch.arange(4.0, device="spmd"))
        tensor([6.], device='spmd:0')
    """
    if type(axis_name) is str and not manual.ON_LOCAL_SHAPES:
        total = _C.sum_over_axis(x, axis_name)
        if total is not None:
            return total
    return _over_axes("psum", x, axis_name, _SUM)


def pmean(x: Any, axis_name: Any) -> Any:
    """The mean over the devices along the axis, or along a tuple of axes.

    Errors: as `psum`.

    Example:
        >>> import torch, torch_spmd as spmd
        >>> mesh = spmd.make_mesh((4,), ("x",))
        >>> f = spmd.shard_map(
        ...     lambda t: spmd.lax.pmean(t, "x"), mesh, spmd.P("x"), spmd.P(None)
        ... )
        >>> f(torch.arange(4.0, device="spmd")).item()
        1.5
    """
    total = _size("pmean", axis_name)
    return pytree.tree_map_only(_Summed, lambda t: t / total, psum(x, axis_name))


def pmax(x: Any, axis_name: Any) -> Any:
    """The maximum over the devices along the axis, or along a tuple of axes.

    Errors: as `psum`.

    Example:
        >>> import torch, torch_spmd as spmd
        >>> mesh = spmd.make_mesh((4,), ("x",))
        >>> f = spmd.shard_map(
        ...     lambda t: spmd.lax.pmax(t, "x"), mesh, spmd.P("x"), spmd.P(None)
        ... )
        >>> f(torch.arange(4.0, device="spmd")).item()
        3.0
    """
    return _over_axes("pmax", x, axis_name, _op(_Reduce, "max"))


def pmin(x: Any, axis_name: Any) -> Any:
    """The minimum over the devices along the axis, or along a tuple of axes.

    Errors: as `psum`.

    Example:
        >>> import torch, torch_spmd as spmd
        >>> mesh = spmd.make_mesh((4,), ("x",))
        >>> f = spmd.shard_map(
        ...     lambda t: spmd.lax.pmin(t, "x"), mesh, spmd.P("x"), spmd.P(None)
        ... )
        >>> f(torch.arange(4.0, device="spmd")).item()
        0.0
    """
    return _over_axes("pmin", x, axis_name, _op(_Reduce, "min"))


def all_gather(x: Any, axis_name: Any, *, axis: int = 0, tiled: bool = False) -> Any:
    """The shards of all devices along `axis_name`, stacked in a new dimension `axis`, or with
    `tiled` concatenated in dimension `axis`. The result does not vary.

    Errors: as `psum`; IndexError for a dimension that the tensor does not have.

    Example:
        >>> import torch, torch_spmd as spmd
        >>> mesh = spmd.make_mesh((2,), ("x",))
        >>> f = spmd.shard_map(
        ...     lambda t: spmd.lax.all_gather(t, "x", tiled=True),
        ...     mesh,
        ...     spmd.P("x"),
        ...     spmd.P(None),
        ... )
        >>> f(torch.arange(4.0, device="spmd")).tolist()
        [0.0, 1.0, 2.0, 3.0]
    """
    tiled = _arguments.boolean("all_gather", "tiled", tiled)
    dim = _arguments.integer("all_gather", "axis", axis, -64, 63)
    axes = _axes("all_gather", axis_name)
    if len(axes) > 1 and not tiled:
        raise ValueError("all_gather: over several axes tiled=True is needed")

    def gather(t: Tensor) -> Tensor:
        d = _dim("all_gather", "axis", dim, t.dim() + (0 if tiled else 1))
        for each in reversed(axes):
            t = _apply(t, each, _op(_Gather, d, tiled))
        return t

    return _each("all_gather", x, gather)


def psum_scatter(x: Any, axis_name: Any, *, scatter_dimension: int = 0, tiled: bool = False) -> Any:
    """The sum over the devices along the axis, of which each keeps one part of
    `scatter_dimension`: a slice with `tiled`, else one index, and the dimension is gone.

    Errors: as `psum`; ValueError if the axis does not divide the dimension (`tiled`), or is not as
    long as the dimension.

    Example:
        >>> import torch, torch_spmd as spmd
        >>> mesh = spmd.make_mesh((2,), ("x",))
        >>> f = spmd.shard_map(
        ...     lambda t: spmd.lax.psum_scatter(t, "x", tiled=True),
        ...     mesh,
        ...     spmd.P(),
        ...     spmd.P("x"),
        ... )
        >>> f(torch.arange(4.0, device="spmd")).tolist()
        [0.0, 2.0, 4.0, 6.0]
    """
    tiled = _arguments.boolean("psum_scatter", "tiled", tiled)
    dim = _arguments.integer("psum_scatter", "scatter_dimension", scatter_dimension, -64, 63)
    axes = _axes("psum_scatter", axis_name)
    if len(axes) > 1 and not tiled:
        raise ValueError("psum_scatter: over several axes tiled=True is needed")

    def scatter(t: Tensor) -> Tensor:
        d = _dim("psum_scatter", "scatter_dimension", dim, t.dim())
        for each in axes:
            _check_size("psum_scatter", "scatter_dimension", t, d, each, tiled)
            t = _apply(t, each, _op(_Scatter, d, tiled))
        return t

    return _each("psum_scatter", x, scatter)


def all_to_all(
    x: Any, axis_name: Any, split_axis: int, concat_axis: int, *, tiled: bool = False
) -> Any:
    """Splits dimension `split_axis` among the devices along the axis, and puts what arrives
    together in dimension `concat_axis`: concatenated with `tiled`; else the split dimension, which
    is as long as the axis, is gone, and a new one is inserted.

    Errors: as `psum_scatter`.

    Example:
        >>> import torch, torch_spmd as spmd
        >>> mesh = spmd.make_mesh((2,), ("x",))
        >>> f = spmd.shard_map(
        ...     lambda t: spmd.lax.all_to_all(t, "x", 1, 0, tiled=True),
        ...     mesh,
        ...     spmd.P("x", None),
        ...     spmd.P(None, "x"),
        ... )
        >>> f(torch.arange(4.0, device="spmd").view(2, 2)).tolist()
        [[0.0, 1.0], [2.0, 3.0]]
    """
    tiled = _arguments.boolean("all_to_all", "tiled", tiled)
    split = _arguments.integer("all_to_all", "split_axis", split_axis, -64, 63)
    concat = _arguments.integer("all_to_all", "concat_axis", concat_axis, -64, 63)
    each = manual_axis("all_to_all", axis_name)

    def exchange(t: Tensor) -> Tensor:
        s = _dim("all_to_all", "split_axis", split, t.dim())
        c = _dim("all_to_all", "concat_axis", concat, t.dim())
        _check_size("all_to_all", "split_axis", t, s, each, tiled)
        return _apply(t, each, _op(_Exchange, s, c, tiled))

    return _each("all_to_all", x, exchange)


def ragged_all_to_all(
    operand: Tensor,
    output: Tensor,
    input_offsets: Tensor,
    send_sizes: Tensor,
    output_offsets: Tensor,
    recv_sizes: Tensor,
    *,
    axis_name: Any,
) -> Tensor:
    """Each device sends rows of its operand, as many as it wants, to each device along the axis.
    The sizes are data: other sizes need no other program.

    To device i go the `send_sizes[i]` rows of `operand` from `input_offsets[i]` on, and they are
    written into its `output` from `output_offsets[i]` on. There is no exchange of parts of unequal
    sizes behind it: one all-to-all sends as many rows to each device as the operand has, n times
    the operand for n devices.

    Args:
        operand: [rows, …].
        output: [rows of the result, …]; what nothing is written to keeps its value.
        input_offsets, send_sizes, output_offsets: integers [n], by receiver.
        recv_sizes: integers [n], by sender: how many rows arrive from it.

    Returns:
        The output with the rows that arrived.

    Errors: as `psum`; TypeError and ValueError for tensors of other types and shapes. Sizes and
        offsets are checked when the program runs, as indices are: rows that do not lie within the
        operand, or do not fit into the output, and a receiver that expects another number of rows
        than its sender sends, are a RuntimeError that names the number, in all processes, where a
        result is read or by `sync`.

    Example:
        >>> import torch, torch_spmd as spmd
        >>> from torch_spmd import P
        >>> mesh = spmd.make_mesh((2,), ("x",))
        >>> def first_row_to_each(t):
        ...     i, one = (
        ...         spmd.lax.axis_index("x"),
        ...         torch.ones(2, dtype=torch.long, device="spmd"),
        ...     )
        ...     return spmd.lax.ragged_all_to_all(
        ...         t, torch.zeros_like(t), 0 * one, one, i * one, one, axis_name="x"
        ...     )
        >>> f = spmd.shard_map(first_row_to_each, mesh, P("x"), P("x"))
        >>> f(torch.arange(4.0, device="spmd")).tolist()
        [0.0, 2.0, 0.0, 2.0]
    """
    each = manual_axis("ragged_all_to_all", axis_name)
    tensors = {"operand": operand, "output": output}
    numbers = {
        "input_offsets": input_offsets,
        "send_sizes": send_sizes,
        "output_offsets": output_offsets,
        "recv_sizes": recv_sizes,
    }
    for name, t in (tensors | numbers).items():
        if not isinstance(t, Tensor):
            raise TypeError(
                f"ragged_all_to_all: {name} must be a tensor; got {_arguments.shown(t)}"
            )
    for name, t in numbers.items():
        if t.shape != (each.size,) or t.is_floating_point() or t.is_complex():
            raise ValueError(
                f"ragged_all_to_all: {name} must have one integer for each of the {each.size} "
                f"devices along axis {each.name!r}; got {t.dtype} of shape {tuple(t.shape)}"
            )
    if operand.dim() < 1 or operand.shape[1:] != output.shape[1:] or operand.dtype != output.dtype:
        raise ValueError(
            "ragged_all_to_all: operand and output must have the same type and the same sizes but "
            f"for the first one; got {operand.dtype} of shape {tuple(operand.shape)} and "
            f"{output.dtype} of shape {tuple(output.shape)}"
        )
    rows, end = operand.shape[0], output.shape[0]
    of_operand, of_output = f"{rows}, the rows of operand", f"{end}, the rows of output"
    sizes = _checked("send_sizes", send_sizes, 0, rows, of_operand)
    starts = _checked("input_offsets", input_offsets, 0, rows, of_operand)
    offsets = _checked("output_offsets", output_offsets, 0, end, of_output)
    starts = _checked("input_offsets + send_sizes", starts + sizes, 0, rows, of_operand) - sizes
    offsets = _checked("output_offsets + send_sizes", offsets + sizes, 0, end, of_output) - sizes
    if rows == 0:
        operand = torch.cat([operand, operand.new_zeros((1, *operand.shape[1:]))])
    steps = torch.arange(max(rows, 1), device=operand.device)
    sent = operand[(starts[:, None] + steps).clamp(0, max(rows - 1, 0))]
    places = torch.where(steps < sizes[:, None], offsets[:, None] + steps, end)
    sent, places = (all_to_all(t, axis_name, 0, 0) for t in (sent, places))
    difference = recv_sizes - (places < end).sum(1)
    what = "recv_sizes minus the send_sizes of the senders"
    places = places + _checked(what, difference, 0, 0, "0")[:, None]
    longer = torch.cat([output, torch.zeros_like(sent[0, :1])])
    return longer.index_put((places.flatten(),), sent.flatten(0, 1))[:end]


def ppermute(x: Any, axis_name: Any, perm: Sequence[tuple[int, int]]) -> Any:
    """Each device sends its value to another one along the axis. `perm` has pairs of positions:
    (source, destination). A device to which nobody sends gets zeros.

    Errors: as `psum`; ValueError if a position is not on the axis or is twice a source or twice a
    destination.

    Example:
        >>> import torch, torch_spmd as spmd
        >>> mesh = spmd.make_mesh((4,), ("x",))
        >>> ring = [(i, (i + 1) % 4) for i in range(4)]
        >>> f = spmd.shard_map(
        ...     lambda t: spmd.lax.ppermute(t, "x", ring), mesh, spmd.P("x"), spmd.P("x")
        ... )
        >>> f(torch.arange(4.0, device="spmd")).tolist()
        [3.0, 0.0, 1.0, 2.0]
    """
    each = manual_axis("ppermute", axis_name)
    sources = _sources(each, perm)
    return _each("ppermute", x, lambda t: _apply(t, each, _op(_Permute, sources)))


def pshuffle(x: Any, axis_name: Any, perm: Sequence[int]) -> Any:
    """Device i gets the value of device `perm[i]`.

    Errors: as `ppermute`; ValueError if `perm` is not a permutation of the axis's positions.

    Example:
        >>> import torch, torch_spmd as spmd
        >>> mesh = spmd.make_mesh((2,), ("x",))
        >>> f = spmd.shard_map(
        ...     lambda t: spmd.lax.pshuffle(t, "x", [1, 0]), mesh, spmd.P("x"), spmd.P("x")
        ... )
        >>> f(torch.arange(2.0, device="spmd")).tolist()
        [1.0, 0.0]
    """
    each = manual_axis("pshuffle", axis_name)
    sources = _arguments.integers("pshuffle", "perm", perm, 0, each.size - 1)
    if sorted(sources) != list(range(each.size)):
        raise ValueError(
            f"pshuffle: perm must have each position of axis {each.name!r} once, 0 to "
            f"{each.size - 1}; got {_arguments.plain(sources)}"
        )
    return _each("pshuffle", x, lambda t: _apply(t, each, _op(_Permute, tuple(sources))))


def pbroadcast(x: Any, axis_name: Any, source: int) -> Any:
    """The value of the device at position `source` along the axis; it does not vary.

    Errors: as `psum`; ValueError for a position that is not on the axis.

    Example:
        >>> import torch, torch_spmd as spmd
        >>> mesh = spmd.make_mesh((4,), ("x",))
        >>> f = spmd.shard_map(
        ...     lambda t: spmd.lax.pbroadcast(t, "x", 2), mesh, spmd.P("x"), spmd.P(None)
        ... )
        >>> f(torch.arange(4.0, device="spmd")).item()
        2.0
    """
    each = manual_axis("pbroadcast", axis_name)
    position = _arguments.integer("pbroadcast", "source", source, 0, each.size - 1)
    return _each("pbroadcast", x, lambda t: _apply(t, each, _op(_Broadcast, position)))


def pvary(x: Any, axis_name: Any) -> Any:
    """The same value, counted as one that varies along the axis or axes.

    Errors: as `psum`.

    Example:
        >>> import torch, torch_spmd as spmd
        >>> mesh = spmd.make_mesh((2,), ("x",))
        >>> f = spmd.shard_map(
        ...     lambda t: spmd.lax.pvary(t, "x"), mesh, spmd.P(None), spmd.P("x")
        ... )
        >>> f(torch.ones(1, device="spmd")).shape
        torch.Size([2])
    """
    axes = _axes("pvary", axis_name)

    def vary(t: Tensor) -> Tensor:
        for each in axes:
            if not varies(t, each):
                t = _apply(t, each, _op(_Vary))
        return t

    return _each("pvary", x, vary)


def axis_index(axis_name: Any) -> Tensor:
    """Each device's position along the axis, an integer tensor without dimensions; along a tuple of
    axes the first one is the major.

    Errors: as `psum`.

    Example:
        >>> import torch, torch_spmd as spmd
        >>> mesh = spmd.make_mesh((4,), ("x",))
        >>> f = spmd.shard_map(
        ...     lambda t: t + spmd.lax.axis_index("x"), mesh, spmd.P("x"), spmd.P("x")
        ... )
        >>> f(torch.zeros(4, device="spmd")).tolist()
        [0.0, 1.0, 2.0, 3.0]
    """
    result = None
    for each in _axes("axis_index", axis_name):
        result = each.index if result is None else result * each.size + each.index
    assert result is not None
    return result


def axis_size(axis_name: Any) -> int:
    """The number of devices along the axis, or along a tuple of axes.

    Errors: as `psum`.

    Example:
        >>> import torch, torch_spmd as spmd
        >>> mesh = spmd.make_mesh((4,), ("x",))
        >>> f = spmd.shard_map(
        ...     lambda t: t * spmd.lax.axis_size("x"), mesh, spmd.P("x"), spmd.P("x")
        ... )
        >>> f(torch.ones(4, device="spmd")).tolist()
        [4.0, 4.0, 4.0, 4.0]
    """
    return _size("axis_size", axis_name)


def shard_size(size: int, axis_name: Any) -> Tensor:
    """How many of the `size` indices of a dimension each device has if the axis, or a tuple of
    axes, shards it: an integer tensor without dimensions. With `shard_map(…, uneven=True)` a shard
    has ⌈size / devices⌉ indices, of which these, the first ones, are in the dimension.

    Errors: as `psum`; ValueError for a negative size.

    Example:
        >>> import torch, torch_spmd as spmd
        >>> from torch_spmd import P
        >>> mesh = spmd.make_mesh((4,), ("x",))
        >>> f = spmd.shard_map(
        ...     lambda t: (t + 1, spmd.lax.shard_size(6, "x")[None]),
        ...     mesh,
        ...     P("x"),
        ...     P("x"),
        ...     uneven=True,
        ... )
        >>> t, sizes = f(torch.zeros(6, device="spmd"))
        >>> len(t), sizes.tolist()
        (6, [2, 2, 2, 0])
    """
    size = _arguments.integer("shard_size", "size", size, 0)
    largest = -(-size // _size("shard_size", axis_name))
    return (size - axis_index(axis_name) * largest).clamp(0, largest)


def _checked(name: str, numbers: Tensor, least: int, most: int, shown: str) -> Tensor:
    """The numbers. The program refuses others than `least` to `most` when it runs."""
    must = shown if least == most else f"in 0 to {shown}"
    refusal = f"ragged_all_to_all: {name} must be {must}; got {{}}"
    result: Tensor = _InRange.apply(numbers, float(least), float(most), refusal)
    return result


class _InRange(torch.autograd.Function):
    """The argument, whose elements are checked when the program runs."""

    @staticmethod
    def forward(t: Tensor, least: float, most: float, refusal: str) -> Tensor:
        result: Tensor = torch.ops.spmd.in_range(t, least, most, refusal)
        return result

    @staticmethod
    def setup_context(ctx: Any, inputs: Any, output: Any) -> None:
        pass

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> Any:
        return grad, None, None, None

    @staticmethod
    def vmap(info: Any, in_dims: Any, t: Tensor, *args: Any) -> Any:
        return _InRange.apply(t, *args), in_dims[0]


# --- arguments ---


def _size(caller: str, axis_name: Any) -> int:
    return math.prod(axis.size for axis in _axes(caller, axis_name))


def _axes(caller: str, axis_name: Any) -> list[ManualAxis]:
    if type(axis_name) is str:
        return [manual_axis(caller, axis_name)]
    names = [axis_name]
    if isinstance(axis_name, (tuple, list)):
        names = _arguments.items(caller, "axis_name", axis_name, "an axis or a tuple of axes", 64)
    axes = [manual_axis(caller, name) for name in names]
    if not axes or len({axis.name for axis in axes}) < len(axes):
        raise ValueError(
            f"{caller}: axis_name must be an axis or a tuple of axes, each once; got "
            f"{_arguments.shown(axis_name)}"
        )
    return axes


_Summed = (Tensor, int, float, complex)


def _each(
    caller: str,
    x: Any,
    function: Callable[[Tensor], Tensor],
    of_number: Callable[[Any], Any] | None = None,
) -> Any:
    """The function's results for each tensor of a tree; `of_number` gives those of numbers."""
    if isinstance(x, Tensor):
        return function(x)
    leaves, form = pytree.tree_flatten(x)
    results = []
    for leaf in leaves:
        if isinstance(leaf, Tensor):
            results.append(function(leaf))
        elif of_number is not None and isinstance(leaf, _Summed):
            results.append(of_number(leaf))
        else:
            raise TypeError(
                f"{caller}: x must be a tensor or a tree of tensors; got {_arguments.shown(leaf)}"
            )
    return pytree.tree_unflatten(results, form)


def _over_axes(caller: str, x: Any, axis_name: Any, op: _Reduce) -> Any:
    if isinstance(x, Tensor) and type(axis_name) is str:
        return _apply(x, manual_axis(caller, axis_name), op)
    axes = _axes(caller, axis_name)

    def over(t: Tensor) -> Tensor:
        for each in axes:
            t = _apply(t, each, op)
        return t

    def of_number(number: Any) -> Any:
        return number * math.prod(each.size for each in axes) if op.kind == "sum" else number

    return _each(caller, x, over, of_number)


def _dim(caller: str, name: str, dim: int, rank: int) -> int:
    if not -rank <= dim < rank:
        raise IndexError(
            f"{caller}: {name} is {dim}, but there are {rank} dimensions to choose from"
        )
    return dim % rank


def _check_size(caller: str, name: str, t: Tensor, dim: int, axis: ManualAxis, tiled: bool) -> None:
    size = t.shape[dim]
    if tiled and size % axis.size != 0:
        raise ValueError(
            f"{caller}: {name} {dim} has size {size}, which the {axis.size} devices along axis "
            f"{axis.name!r} do not divide"
        )
    if not tiled and size != axis.size:
        raise ValueError(
            f"{caller}: {name} {dim} has size {size}, but axis {axis.name!r} has {axis.size} "
            "devices; pass tiled=True to divide the dimension"
        )


def _sources(axis: ManualAxis, perm: Any) -> tuple[int, ...]:
    """For each position the position from which it receives, or -1."""
    sources = [-1] * axis.size
    what = "pairs of positions (source, destination)"
    used = set()
    for pair in _arguments.items("ppermute", "perm", perm, what):
        numbers = _arguments.integers("ppermute", "a pair of perm", pair, 0, axis.size - 1)
        if len(numbers) != 2:
            raise ValueError(f"ppermute: perm must be {what}; got {_arguments.shown(pair)}")
        source, destination = numbers
        if source in used or sources[destination] >= 0:
            raise ValueError(
                f"ppermute: perm has the source {source} or the destination {destination} twice"
            )
        used.add(source)
        sources[destination] = source
    return tuple(sources)


# --- the ops ---


@functools.lru_cache(maxsize=1024)
def _op(kind: Callable[..., Any], *arguments: Any) -> Any:
    """The collective of that kind, the same object each time, so that it is compared at once."""
    return kind(*arguments)


@dataclass(frozen=True)
class _Collective:
    """An op on a tensor whose first dimension is the manual axis. Its dimensions are those of the
    tensor without that dimension."""

    def run(self, t: Tensor) -> tuple[Tensor, bool]:
        """The result, and whether it has the manual axis as its first dimension."""
        raise NotImplementedError

    def shifted(self) -> _Collective:
        """The same for a tensor with one more leading dimension."""
        return self

    def transposed(self, grad: Tensor, x: Tensor, axis: ManualAxis) -> Tensor:
        """The gradient of the argument `x`, from that of the result."""
        raise NotImplementedError


@dataclass(frozen=True)
class _Reduce(_Collective):
    kind: str

    def run(self, t: Tensor) -> tuple[Tensor, bool]:
        if self.kind == "sum":
            return t.sum(0, dtype=None if t.dtype == torch.bool else t.dtype), False
        return (t.amax(0) if self.kind == "max" else t.amin(0)), False

    def transposed(self, grad: Tensor, x: Tensor, axis: ManualAxis) -> Tensor:
        grad = _summed(grad, axis)
        if self.kind == "sum":
            return grad
        chosen = x == _apply(x, axis, self)
        return torch.where(chosen, grad / _apply(chosen.to(grad.dtype), axis, _SUM), 0)


_SUM = _Reduce("sum")


@dataclass(frozen=True)
class _Gather(_Collective):
    dim: int
    tiled: bool

    def run(self, t: Tensor) -> tuple[Tensor, bool]:
        t = t.movedim(0, self.dim)
        return (t.flatten(self.dim, self.dim + 1) if self.tiled else t), False

    def shifted(self) -> _Collective:
        return replace(self, dim=self.dim + 1)

    def transposed(self, grad: Tensor, x: Tensor, axis: ManualAxis) -> Tensor:
        if varies(grad, axis):
            return _apply(grad, axis, _Scatter(self.dim, self.tiled))
        return _apply(grad, axis, _Scatter(self.dim, self.tiled)) / axis.size


@dataclass(frozen=True)
class _Scatter(_Collective):
    dim: int
    tiled: bool

    def run(self, t: Tensor) -> tuple[Tensor, bool]:
        size, total = t.shape[0], t.sum(0, dtype=t.dtype)
        if self.tiled:
            total = total.unflatten(self.dim, (size, total.shape[self.dim] // size))
        return total.movedim(self.dim, 0), True

    def shifted(self) -> _Collective:
        return replace(self, dim=self.dim + 1)

    def transposed(self, grad: Tensor, x: Tensor, axis: ManualAxis) -> Tensor:
        return _apply(grad, axis, _Gather(self.dim, self.tiled))


@dataclass(frozen=True)
class _Exchange(_Collective):
    split: int
    concat: int
    tiled: bool

    def run(self, t: Tensor) -> tuple[Tensor, bool]:
        size, split = t.shape[0], self.split + 1
        if self.tiled:
            t = t.unflatten(split, (size, t.shape[split] // size))
        t = t.movedim(split, 0).movedim(1, self.concat + 1)
        return (t.flatten(self.concat + 1, self.concat + 2) if self.tiled else t), True

    def shifted(self) -> _Collective:
        return replace(self, split=self.split + 1, concat=self.concat + 1)

    def transposed(self, grad: Tensor, x: Tensor, axis: ManualAxis) -> Tensor:
        return _apply(grad, axis, _Exchange(self.concat, self.split, self.tiled))


@dataclass(frozen=True)
class _Permute(_Collective):
    sources: tuple[int, ...]  # by destination; -1 is zeros

    def run(self, t: Tensor) -> tuple[Tensor, bool]:
        if self.sources == tuple(range(len(self.sources))):
            return t, True
        result: Tensor = _Reorder.apply(t, 0, self.sources)  # one exchange
        return result, True

    def transposed(self, grad: Tensor, x: Tensor, axis: ManualAxis) -> Tensor:
        return _apply(grad, axis, _Permute(_inverse(self.sources)))


def _inverse(sources: tuple[int, ...]) -> tuple[int, ...]:
    """For each position to whom it goes, or -1. Each position is a source at most once."""
    inverse = [-1] * len(sources)
    for destination, source in enumerate(sources):
        if source >= 0:
            inverse[source] = destination
    return tuple(inverse)


class _Reorder(torch.autograd.Function):
    """Index i along a dimension is index sources[i] of the argument, zeros if that is -1."""

    @staticmethod
    def forward(t: Tensor, dim: int, sources: tuple[int, ...]) -> Tensor:
        result: Tensor = torch.ops.spmd.reorder(t, dim, sources)
        return result

    @staticmethod
    def setup_context(ctx: Any, inputs: Any, output: Any) -> None:
        _, ctx.dim, ctx.sources = inputs

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> Any:
        return _Reorder.apply(grad, ctx.dim, _inverse(ctx.sources)), None, None

    @staticmethod
    def jvp(ctx: Any, tangent: Tensor, *_: Any) -> Any:
        return _Reorder.apply(tangent, ctx.dim, ctx.sources)

    @staticmethod
    def vmap(info: Any, in_dims: Any, t: Tensor, dim: int, sources: tuple[int, ...]) -> Any:
        return _Reorder.apply(t.movedim(in_dims[0], 0), dim + 1, sources), 0


@dataclass(frozen=True)
class _Broadcast(_Collective):
    source: int

    def run(self, t: Tensor) -> tuple[Tensor, bool]:
        return t.select(0, self.source), False

    def transposed(self, grad: Tensor, x: Tensor, axis: ManualAxis) -> Tensor:
        return torch.where(axis.index == self.source, _summed(grad, axis), 0)


@dataclass(frozen=True)
class _Vary(_Collective):
    def run(self, t: Tensor) -> tuple[Tensor, bool]:
        return t, True

    def transposed(self, grad: Tensor, x: Tensor, axis: ManualAxis) -> Tensor:
        return _summed(grad, axis)


def _summed(grad: Tensor, axis: ManualAxis) -> Tensor:
    """The whole gradient of a value that does not vary, from what each device has of it."""
    return _apply(grad, axis, _SUM) if varies(grad, axis) else grad


def _apply(t: Tensor, axis: ManualAxis, op: _Collective) -> Tensor:
    if has_torch_function_unary(t):  # a collective is one op for those who watch ops
        result: Tensor = handle_torch_function(_apply, (t,), t, axis, op)
        return result
    if axis.is_local:
        from torch_spmd.regions import local_shapes  # which imports the module of regions

        return local_shapes.apply(t, axis, op)
    step = _C.call_on_shards(_on_axis, (t,), axis.name, op)
    return _on_axis(t, axis, op) if step is None else step


def _on_axis(t: Tensor, axis: ManualAxis, op: _Collective) -> Tensor:
    """What `_OnAxis` computes. It runs at once where the levels of torch.func down to the axis's
    are those of vmap, which differentiate nothing."""
    level = _functorch.maybe_current_level()
    if level is None or (level != axis.level and not _is_vmap_on_top()):
        applied: Tensor = _OnAxis.apply(t, axis.index, axis, op)
        return applied
    if not (_functorch.is_batchedtensor(t) and _functorch.maybe_get_level(t) == level):
        dim = None
        t = _functorch.unwrap_if_dead(t)
    else:
        dim = _functorch.maybe_get_bdim(t)
        t = _functorch.get_unwrapped(t)
    left = _functorch.pop_dynamic_layer_stack()
    try:
        if dim:
            t = t.movedim(dim, 0)
        if level == axis.level:
            t, batched = op.run(t.expand(axis.size, *t.shape) if dim is None else t)
        else:  # another axis, or a vmap inside the region
            batched = dim is not None
            t = _on_axis(t, axis, op.shifted() if batched else op)
    finally:
        _functorch.push_dynamic_layer_stack(left)
    return _functorch._add_batch_dim(t, 0, level) if batched else t


def _is_vmap_on_top() -> bool:
    top: Any = _functorch.peek_interpreter_stack()
    return bool(top.key() == _functorch.TransformType.Vmap)


class _OnAxis(torch.autograd.Function):
    """A collective under vmap. The axis's index is an argument so that the axis's level is reached
    also by values that do not vary along it."""

    @staticmethod
    def forward(t: Tensor, index: Tensor, axis: ManualAxis, op: _Collective) -> Tensor:
        raise AssertionError("a collective runs at the level of its axis")

    @staticmethod
    def setup_context(ctx: Any, inputs: Any, output: Any) -> None:
        t, _, ctx.axis, ctx.op = inputs
        ctx.save_for_backward(t)

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> Any:
        (t,) = ctx.saved_tensors
        return ctx.op.transposed(grad, t, ctx.axis), None, None, None

    @staticmethod
    def vmap(
        info: Any, in_dims: Any, t: Tensor, index: Tensor, axis: ManualAxis, op: _Collective
    ) -> Any:
        level = (_functorch.maybe_current_level() or 0) + 1
        if level != axis.level:  # another axis, or a vmap inside the region
            if in_dims[1] is not None:
                raise AssertionError("the index of an axis is batched at the axis's level only")
            return _OnAxis.apply(t.movedim(in_dims[0], 0), index, axis, op.shifted()), 0
        t = t.expand(axis.size, *t.shape) if in_dims[0] is None else t.movedim(in_dims[0], 0)
        result, batched = op.run(t)
        return result, 0 if batched else None
