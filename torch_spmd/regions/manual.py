# SPDX-License-Identifier: Apache-2.0
"""Manual regions: `shard_map`, in which a function sees the shards along some axes of a mesh.

A region adds no kind of value to the compiler. Along each manual axis, the shards of a tensor are a
leading dimension that is as long as the axis and sharded by it, and the function runs under one
level of `torch.func.vmap` per axis. A value varies along an axis exactly if it is batched at the
axis's level, which vmap tracks by itself. A collective is then an op on the leading dimension: a
sum over it is an all-reduce, a roll along it a permutation (`collectives.py`).

From its second call on, the function mostly gets shards that are only a shape and a number, and
what the region recorded is skipped (csrc/trace/api/shard_run.h).
"""

from __future__ import annotations

import contextlib
import functools
import inspect
import math
import os
import re
from collections.abc import Callable, Iterator, Mapping, Sequence, Set
from dataclasses import dataclass
from typing import Any, ClassVar

import torch
import torch.nn.functional as F
from torch import Tensor

from torch_spmd import _C, _arguments
from torch_spmd._compat import core, pyfunctorch, pytree, vmap
from torch_spmd._compat import functorch as _functorch
from torch_spmd.sharding import ops
from torch_spmd.sharding.global_mesh import mesh_or_global
from torch_spmd.sharding.mesh import Mesh
from torch_spmd.sharding.spec import UNCONSTRAINED, PartitionSpec, is_spec, names_in, to_spec

# Regions run on local shapes (local_shapes.py) and not under levels of vmap. Private, until all
# tests of regions pass.
ON_LOCAL_SHAPES = os.environ.get("_SPMD_LOCAL_REGIONS") == "1"


def shard_map(
    f: Callable[..., Any] | None = None,
    mesh: Mesh | None = None,
    in_specs: Any = None,
    out_specs: Any = None,
    axis_names: Any = None,
    *,
    check_vma: bool = True,
    uneven: bool = False,
) -> Any:
    """A function that runs `f` on the shards of its arguments, and puts the shards of its results
    together. It has the semantics of `jax.shard_map`.

    Inside, each tensor has the shape of one shard along the manual axes, and the devices along them
    exchange data by `psum`, `all_gather`, `ppermute` and the other collectives only. Outside,
    everything is global. Without `f` it is a decorator.

    Args:
        f: a function of tensors, and trees of them, to tensors or trees of them. Keyword arguments
            are not accepted.
        mesh: the mesh; None means the global one.
        in_specs: one spec for each argument, or a tree of specs; a spec for a tree is for all of
            its tensors. An entry names the manual axes that divide the dimension; along other axes
            every device sees the same. Dimensions behind the last entry are whole.
        out_specs: a spec or a tree of specs for the results.
        axis_names: the manual axes; None means all. Along the others the compiler shards as it does
            outside.
        check_vma: refuses a result whose spec leaves out an axis along which it varies, and tensors
            from outside that `f` uses without taking them as arguments while they are sharded over
            a manual axis. False takes the value of the first device, and the whole tensor.
        uneven: accepts dimensions that the axes do not divide. All devices run one program, so a
            shard has the size of the largest one, ⌈size / devices⌉: on the last devices zeros
            follow behind its own indices, of which `shard_size` tells the number. A dimension of a
            result whose shards are as large as those of such an argument, along the same axes, is
            the argument's: what lies behind its end is cut off.

    `f` is called once for each call of the region. In a step in which it begins to do what it has
    not done in the first one (random numbers, writes in place, functions with a gradient of their
    own), it may be called twice (docs/shard_map.md, "Limits").

    A derivative outside of the region is that of the whole. Inside, `torch.func.grad` with respect
    to a value that does not vary gives each device its own part of the gradient; `psum` adds them.

    Errors:
        TypeError: an argument of another kind.
        ValueError: an axis that the mesh does not have or that is not manual, an axis twice, a
            dimension that the axes do not divide (without `uneven`), a spec of another length than
            the tensor's rank, a region inside a region over the same axis, a result that varies
            (see `check_vma`), a result of which two arguments tell two sizes (see `uneven`).

    Example:
        >>> import torch, torch_spmd as spmd
        >>> from torch_spmd import P
        >>> mesh = spmd.make_mesh((4,), ("x",))
        >>> @spmd.shard_map(mesh=mesh, in_specs=(P("x"),), out_specs=P())
        ... def total(part):
        ...     return spmd.lax.psum(part.sum(), "x")
        >>> total(torch.arange(8.0, device="spmd")).item()
        28.0
    """
    if f is not None and not callable(f):
        raise TypeError(f"shard_map: f must be a function; got {_arguments.shown(f)}")
    mesh = mesh_or_global("shard_map", mesh)
    axes = _manual_axes(mesh, axis_names)
    check_vma = _arguments.boolean("shard_map", "check_vma", check_vma)
    uneven = _arguments.boolean("shard_map", "uneven", uneven)
    _check_specs(mesh, axes, "in_specs", in_specs)
    _check_specs(mesh, axes, "out_specs", out_specs)

    def decorated(f: Callable[..., Any]) -> Callable[..., Any]:
        region = Region(f, mesh, axes, in_specs, out_specs, check_vma, uneven)

        @functools.wraps(f)
        def on_shards(*args: Any, **kwargs: Any) -> Any:
            if kwargs:
                raise TypeError(
                    f"shard_map: {_name(f)} was called with the keyword argument "
                    f"{next(iter(kwargs))!r}; in_specs are by position, so pass it by position"
                )
            return region.run(args)

        return on_shards

    return decorated if f is None else decorated(f)


@dataclass
class ManualAxis:
    """An axis of the regions that are entered: its level of vmap and its size."""

    mesh: Mesh
    name: str
    size: int
    level: int
    is_local: ClassVar[bool] = False

    @functools.cached_property
    def index(self) -> Tensor:
        """Each device's position along the axis. It is made below all levels of torch.func, since
        one that is entered by now is above this axis's."""
        if (step := _C.call_on_shards(_index, (), self.name, None)) is not None:
            return step
        with pyfunctorch.temporarily_clear_interpreter_stack(), core.DisableTorchFunction():
            positions = torch.arange(self.size, device="spmd")
        return _functorch._add_batch_dim(positions, 0, self.level)


def _index(axis: ManualAxis, _: None) -> Tensor:
    return axis.index


is_wrapped = _functorch.is_functorch_wrapped_tensor


def entered() -> list[ManualAxis]:
    """The manual axes of the regions that the caller is in, the outermost first."""
    return _C.entered_axes()


@contextlib.contextmanager
def entered_again(axes: list[ManualAxis]) -> Iterator[None]:
    """A context in which exactly these axes are entered."""
    before = _C.replace_axes(axes)
    try:
        yield
    finally:
        _C.replace_axes(before)


def manual_axis(caller: str, name: Any) -> ManualAxis:
    """The axis of that name. Errors: ValueError outside of a region with such an axis."""
    if type(name) is not str:
        name = _arguments.text(caller, "axis_name", name)
    axis: ManualAxis | None = _C.axis_named(name)
    if axis is not None:
        return axis
    name = _arguments.text(caller, "axis_name", name)
    if not (axes := entered()):
        raise ValueError(
            f"{caller}: there are no shards outside of a manual region; call it in a function that "
            "spmd.shard_map runs"
        )
    names = ", ".join(repr(axis.name) for axis in axes)
    raise ValueError(
        f"{caller}: axis_name: {name!r} is not an axis of the region; its axes are {names}"
    )


def varies(t: Tensor, axis: ManualAxis) -> bool:
    """Whether the value may differ between the devices along the axis."""
    if axis.is_local:
        return axis.name in _C.varies_along(t)
    while is_wrapped(t):
        if _functorch.is_batchedtensor(t) and _functorch.maybe_get_level(t) == axis.level:
            return True
        t = _functorch.get_unwrapped(t)
    return False


@dataclass
class Region:
    """A function on shards. `out_specs` may be a function of its results, too."""

    f: Callable[..., Any]
    mesh: Mesh
    axes: tuple[str, ...]
    in_specs: Any
    out_specs: Any
    check_vma: bool
    uneven: bool = False

    def __post_init__(self) -> None:
        self.layouts = _layouts(self.mesh, self.axes)
        self._axis_sizes = [self.layouts.sizes[name] for name in self.axes]
        checked = self.axes if self.check_vma else ()
        self._entered = _C.RegionAxes(self.mesh, self.axes, self._axis_sizes, checked)
        # By the shapes of arguments that fit their specs, and by the shape of the shards of the
        # only result. And the latest.
        self._known: dict[Any, _C.KnownRegion] = {}
        self._exits: dict[Any, _C.RegionExit] = {}
        self._latest: _C.KnownRegion | None = None

    def run(self, args: tuple[Any, ...]) -> Any:
        if ON_LOCAL_SHAPES:
            return self._run_on_local_shapes(args)
        results = NotImplemented
        if self._latest is not None:
            results = self._latest.run(self, args)
        if results is NotImplemented:
            results = self._run(args)
        return results

    def _run_on_local_shapes(self, args: tuple[Any, ...]) -> Any:
        from torch_spmd.regions import local_shapes  # which imports this module

        self._refuse_nested()
        mesh_or_global("shard_map", self.mesh)
        _prepare()
        local_shapes.prepare()
        return local_shapes.run(self, args)

    def _refuse_nested(self) -> None:
        for axis in entered():
            if axis.name in self.axes:
                raise ValueError(
                    f"shard_map: {_name(self.f)}: the region is inside of another one over axis "
                    f"{axis.name!r}; name other axes in axis_names"
                )

    def _run(self, args: tuple[Any, ...]) -> Any:
        self._refuse_nested()
        mesh_or_global("shard_map", self.mesh)
        _prepare()
        if self._known and all(isinstance(t, Tensor) for t in args):
            known = self._known.get(_shapes(args))
            if known is not None and (results := known.run(self, args)) is not NotImplemented:
                self._latest = known
                return results
        leaves, form, specs = self._arguments(args)
        if (known := self._remember_arguments(leaves, form, specs)) is not None:
            results = known.run(self, args)
            if results is not NotImplemented:
                return results
        sizes: _Sizes = {}
        shards = [
            _to_shards(self, leaf, spec, functools.partial(_argument, form, i), sizes)
            if spec is not None
            else (leaf, ())
            for i, (leaf, spec) in enumerate(zip(leaves, specs))
        ]
        level, inner = self._enter(shards)
        try:
            try:
                outputs = self.f(*_tree(inner, form))
            except Exception as error:
                self._explain(error)
                raise
            return self._finish(outputs, level, sizes)
        finally:
            _C.leave_levels(level)

    def _finish(self, outputs: Any, level: int, sizes: _Sizes | None = None) -> Any:
        """Leaves the levels from `level` on. Returns the results."""
        sizes = {} if sizes is None else sizes
        leaves, results = self._results(outputs)
        for axis in reversed(entered()):
            if axis.level < level:
                break
            leaves = [self._leave(axis, t, i, results) for i, t in enumerate(leaves)]
            _C.leave_levels(axis.level)
        merged = [
            _from_shards(self, t, spec, axes, functools.partial(results.where, i), sizes)
            if isinstance(t, Tensor)
            else t
            for i, (t, spec, axes) in enumerate(zip(leaves, results.specs, results.axes))
        ]
        return _tree(merged, results.form)

    def _enter(self, shards: list[_Shards]) -> tuple[int, list[Any]]:
        """Enters the levels of the axes. Returns the first level, and what the function sees."""
        level = self._entered.enter()
        levels = {name: level + i for i, name in enumerate(self.axes)}
        inner = []
        for leaf, axes in shards:
            for axis in axes:  # the leading dimensions, in the order of the levels
                leaf = _functorch._add_batch_dim(leaf, 0, levels[axis])
            inner.append(leaf)
        return level, inner

    @functools.cached_property
    def _by_position(self) -> Sequence[Any] | None:
        """The specs of the arguments; None if there is one for all of them."""
        if is_spec(self.in_specs) or self.in_specs is None:
            return None
        return _arguments.items("shard_map", "in_specs", self.in_specs, "specs by position")

    def _arguments(self, args: tuple[Any, ...]) -> tuple[Sequence[Any], Any, Sequence[Any]]:
        specs = self._by_position
        if specs is None:
            specs = (self.in_specs,) * len(args)
        if len(specs) != len(args):
            raise ValueError(
                f"shard_map: in_specs has {len(specs)} specs, but {_name(self.f)} was called with "
                f"{len(args)} arguments"
            )
        each = [spec for s, arg in zip(specs, args) for spec in _broadcast("in_specs", s, arg)]
        for arg in args:
            if not isinstance(arg, Tensor):
                leaves, form = pytree.tree_flatten(args)
                for i, leaf in enumerate(leaves):
                    _refuse_closed(self.f, functools.partial(_argument, form, i), leaf)
                return leaves, form, each
        return args, _ARGUMENTS, each

    def _remember_arguments(
        self, leaves: Sequence[Any], form: Any, specs: Sequence[Any]
    ) -> _C.KnownRegion | None:
        """The region for arguments of these shapes; None for trees, for other values than tensors
        and for shards that may be padded, which are looked at each time."""
        if form is not _ARGUMENTS or self.uneven or (shapes := _shapes(leaves)) is None:
            return None
        forms, places = [], []
        for i, (t, spec) in enumerate(zip(leaves, specs)):
            if spec is None:
                return None
            spec, way = _way_in(self, t, spec, functools.partial(_argument, form, i))
            form_in = self.layouts.form_in(spec, t.shape)
            if form_in is None:
                return None
            forms.append(form_in)
            places.append([self.axes.index(axis) for axis in way.axes])
        known = _C.KnownRegion(self._entered, forms, places)
        self._latest = _remembered(self._known, shapes, known)
        return known

    def _explain(self, error: Exception) -> None:
        """Raises an error of the function in other words, if there are better ones."""
        _explain(self.f, error)

    def _exit_of(self, outputs: Any) -> _C.RegionExit | None:
        """How the only result becomes a tensor; None for trees, other values than tensors, and
        values that vary along an axis that their spec does not name."""
        if not isinstance(outputs, Tensor) or callable(self.out_specs):
            return None
        if (shapes := _shapes([outputs])) is None:
            return None
        if (found := self._exits.get(shapes)) is not None:
            return found
        _, results = self._results(outputs)
        (spec,) = results.specs
        if spec is None:
            return None
        named = [axis in self.layouts.names(spec) for axis in self.axes]
        axes = tuple(axis for axis, is_named in zip(self.axes, named) if is_named)
        lanes = (*(self.layouts.sizes[axis] for axis in axes), *outputs.shape)
        form = self.layouts.form_out(spec, axes, lanes)
        if form is None:
            return None
        exit = _C.RegionExit(form, outputs.shape, named, self._axis_sizes)
        found = _remembered(self._exits, shapes, exit)
        return found

    def _results(self, outputs: Any) -> tuple[list[Any], _Results]:
        """The results of the function, and what is known about them."""
        results = _Results()
        leaves: list[Any]
        leaves, results.form = [outputs], _ALONE
        if not isinstance(outputs, Tensor):
            leaves, results.form = pytree.tree_flatten(outputs)
        specs = self.out_specs(outputs) if callable(self.out_specs) else self.out_specs
        results.specs = _broadcast("out_specs", specs, outputs)
        results.axes = [()] * len(leaves)
        for i, (leaf, spec) in enumerate(zip(leaves, results.specs)):
            if not isinstance(leaf, Tensor):
                _refuse_closed(self.f, functools.partial(results.where, i), leaf)
                continue
            if leaf.device.type != "spmd":
                raise ValueError(
                    f"shard_map: {_name(self.f)}: {results.where(i)} is on {str(leaf.device)!r}; "
                    "inside a manual region tensors stay on 'spmd', so move it outside"
                )
            if spec is None:
                continue
            if len(spec) > leaf.dim():
                raise ValueError(
                    f"shard_map: {_name(self.f)}: {results.where(i)} has {leaf.dim()} dimensions, "
                    f"but its spec in out_specs is {spec!r}"
                )
            results.specs[i] = _for_all(spec, leaf)
        return leaves, results

    def _leave(self, axis: ManualAxis, t: Any, position: int, results: _Results) -> Any:
        """The result with the axis as its first dimension, if it varies or its spec names it."""
        if not isinstance(t, Tensor):
            return t
        spec = results.specs[position]
        named = spec is not None and axis.name in self.layouts.names(spec)
        if not named and not varies(t, axis):
            return t
        if not named and self.check_vma:
            raise ValueError(
                f"shard_map: {_name(self.f)}: {results.where(position)} varies along "
                f"axis {axis.name!r}, which its spec {spec!r} does not name; name it, or combine "
                f"the devices' values, for instance by psum(…, {axis.name!r})"
            )
        t = _functorch._remove_batch_dim(t, axis.level, axis.size, 0)
        if not named:
            return t.select(0, 0)
        results.axes[position] = (axis.name, *results.axes[position])
        return t


@dataclass
class _Results:
    """About the results of the function: the form of their tree, and for each its spec and the axes
    that are leading dimensions of it."""

    form: Any = None
    specs: Sequence[Any] = ()
    axes: list[tuple[str, ...]] = None  # type: ignore[assignment]

    def where(self, i: int) -> str:
        """Which result that is, in words."""
        place = _place(self.form, i)
        return f"result {place}" if place else "its result"


@functools.cache
def _prepare() -> None:
    """What is needed before the first region."""
    from torch_spmd.regions import functional_collectives  # which imports this module

    vmap.lazy_load_decompositions()
    functional_collectives.register()


# --- specs ---


def _manual_axes(mesh: Mesh, axis_names: Any) -> tuple[str, ...]:
    if axis_names is None:
        return mesh.axis_names
    if isinstance(axis_names, str):
        axis_names = (axis_names,)
    what = "names of axes"
    given = _arguments.items("shard_map", "axis_names", axis_names, what, any_order=True)
    names = [_arguments.text("shard_map", "an item of axis_names", name) for name in given]
    for name in names:
        try:
            mesh.get_axis_name_idx(name)
        except ValueError as error:
            raise ValueError(f"shard_map: axis_names: {error}") from None
    if not names:
        raise ValueError("shard_map: axis_names is empty; name the axes along which f sees shards")
    return tuple(name for name in mesh.axis_names if name in names)


def _check_specs(mesh: Mesh, axes: tuple[str, ...], what: str, specs: Any) -> None:
    """Errors: ValueError for an axis that is not manual, or that a spec names twice; TypeError."""
    if specs is None:
        raise TypeError(f"shard_map: {what} must be specs; got None")
    with _arguments.reading("shard_map", what):
        leaves = [specs] if is_spec(specs) else pytree.tree_leaves(specs, is_leaf=_is_leaf)
    for leaf in leaves:
        if leaf is None:
            continue
        try:
            spec = to_spec(leaf)
        except TypeError as error:
            raise TypeError(f"shard_map: {what}: {error}") from None
        names = _axes_in(spec)
        for name in names:
            if name not in axes:
                try:
                    mesh.get_axis_name_idx(name)
                except ValueError as error:
                    raise ValueError(f"shard_map: {what}: {error}") from None
                raise ValueError(
                    f"shard_map: {what}: {spec!r} names axis {name!r}, which is not manual; the "
                    f"manual axes are {', '.join(map(repr, axes))}"
                )
            if names.count(name) > 1:
                raise ValueError(f"shard_map: {what}: axis {name!r} occurs twice in {spec!r}")


def _is_leaf(value: Any) -> bool:
    return value is None or is_spec(value)


def _axes_in(spec: PartitionSpec) -> list[str]:
    for entry in spec:
        each = entry if isinstance(entry, tuple) else (entry,)
        if not all(item is None or isinstance(item, str) for item in each):
            raise ValueError(
                f"shard_map: {spec!r}: an entry is None, the name of a manual axis, or a tuple of "
                "them"
            )
    return names_in(spec)


def _broadcast(what: str, specs: Any, tree: Any) -> list[Any]:
    """For each leaf of the tree its spec; None for what is no tensor."""
    if isinstance(tree, Tensor):
        return [to_spec(specs) if specs is not None else PartitionSpec()]
    if is_spec(specs) and not isinstance(tree, (int, float, str, type(None))):
        return [
            to_spec(specs) if isinstance(leaf, Tensor) else None
            for leaf in pytree.tree_leaves(tree)
        ]
    if isinstance(tree, Mapping) and isinstance(specs, Mapping) and set(tree) == set(specs):
        return [spec for key in tree for spec in _broadcast(what, specs[key], tree[key])]
    same = isinstance(tree, (list, tuple)) and isinstance(specs, (list, tuple))
    if same and len(tree) == len(specs):
        return [spec for item, s in zip(tree, specs) for spec in _broadcast(what, s, item)]
    if not any(isinstance(leaf, Tensor) for leaf in pytree.tree_leaves(tree)):
        return [None for _ in pytree.tree_leaves(tree)]
    raise ValueError(
        f"shard_map: {what}: the tree of specs has another form than the tree of tensors: "
        f"{_arguments.shown(specs)} for {_arguments.shown(tree)}"
    )


# Forms of trees that need no flattening: a tuple of tensors, and a tensor by itself.
_ARGUMENTS, _ALONE = "arguments", "alone"


def _tree(leaves: Sequence[Any], form: Any) -> Any:
    if form is _ALONE:
        return leaves[0]
    return tuple(leaves) if form is _ARGUMENTS else pytree.tree_unflatten(leaves, form)


def _place(form: Any, i: int) -> str:
    """The place of leaf `i` in a tree: "[0]['a']"."""
    if form is _ALONE:
        return ""
    if form is _ARGUMENTS:
        return f"[{i}]"
    tree = pytree.tree_unflatten(list(range(form.num_leaves)), form)
    paths, _ = pytree.tree_flatten_with_path(tree)
    return pytree.keystr(paths[i][0])


def _argument(form: Any, i: int) -> str:
    return f"argument {_place(form, i)}"


def _refuse_closed(f: Callable[..., Any], where: Callable[[], str], leaf: Any) -> None:
    """Errors: TypeError for a container of tensors that PyTorch's trees take for a leaf."""
    if not isinstance(leaf, (list, tuple, Set, Mapping)):
        return
    caller = f"shard_map: {_name(f)}"
    with _arguments.reading(caller, where()):
        items = list(leaf.values() if isinstance(leaf, Mapping) else leaf)
    if any(isinstance(item, Tensor) for item in items):
        raise TypeError(
            f"{caller}: {where()} is a {type(leaf).__name__}, whose tensors PyTorch's trees do not "
            "show; use a list, a tuple or a dict, or register the class "
            "(torch.utils._pytree.register_pytree_node)"
        )


def _name(f: Callable[..., Any]) -> str:
    """The function's name and the line on which it is defined."""
    f = inspect.unwrap(f)
    name = getattr(f, "__name__", type(f).__name__)
    code = getattr(f, "__code__", None)
    if code is None:
        return name
    return f"{name} ({code.co_filename.rpartition('/')[2]}:{code.co_firstlineno})"


# --- shards as leading dimensions ---


def _for_all(spec: PartitionSpec, t: Tensor) -> PartitionSpec:
    """The spec with an entry for each dimension: those behind its last one are whole."""
    return _of_rank(spec, t.dim()) if t.dim() > len(spec) else spec


@functools.lru_cache(maxsize=256)
def _of_rank(spec: PartitionSpec, rank: int) -> PartitionSpec:
    return PartitionSpec(*spec, *(None,) * (rank - len(spec)))


# A tensor, and the axes that are its leading dimensions.
_Shards = tuple[Any, tuple[str, ...]]


def _shapes(leaves: Sequence[Any]) -> tuple[torch.Size, ...] | None:
    """The shapes of tensors, as a key; None if sizes are not known."""
    shapes = tuple([t.shape for t in leaves])
    try:
        hash(shapes)
    except TypeError:
        return None
    return shapes


# By axes that shard a dimension, and the size of its largest shard: the sizes of such dimensions
# of arguments.
_Sizes = dict[tuple[tuple[str, ...], int], set[int]]


def _way_in(
    region: Region, t: Tensor, spec: PartitionSpec, where: Callable[[], str]
) -> tuple[PartitionSpec, _WayIn]:
    """How a tensor becomes shards, and its spec for all dimensions. Errors: TypeError and
    ValueError for a tensor that does not fit its spec."""

    def caller() -> str:
        return f"shard_map: {_name(region.f)}: {where()}"

    if t.device.type != "spmd" or t.layout != torch.strided:
        _arguments.tensor(caller(), t)
    if len(spec) > t.dim():
        raise ValueError(
            f"{caller()}: spec {spec!r} has {len(spec)} entries, but the tensor has {t.dim()} "
            "dimensions"
        )
    spec = _for_all(spec, t)
    way = region.layouts.way_in(spec, t.shape)
    if way.missing is not None and not region.uneven:
        dim = next(d for d, n in enumerate(way.missing) if n)
        count = math.prod(region.layouts.sizes[axis] for axis in _axes_of(spec[dim]))
        raise ValueError(
            f"{caller()}: dimension {dim} has size {t.shape[dim]}, which {count} devices along "
            f"{', '.join(map(repr, _axes_of(spec[dim])))} do not divide; pad it, choose other "
            "axes, or pass uneven=True"
        )
    return spec, way


def _to_shards(
    region: Region, t: Any, spec: PartitionSpec, where: Callable[[], str], known: _Sizes
) -> tuple[Any, tuple[str, ...]]:
    """The tensor with one leading dimension for each axis that its spec names, in the region's
    order, and these axes. Notes in `known` how large the dimensions are that are sharded."""
    if not isinstance(t, Tensor):
        return t, ()
    spec, way = _way_in(region, t, spec, where)
    if region.uneven:
        for dim, entry in enumerate(spec):
            if axes := _axes_of(entry):
                known.setdefault((axes, way.shard[dim]), set()).add(t.shape[dim])
    if way.missing is not None:  # zeros where the last shards end, for which nothing is sent
        t = region.layouts.reshard(t, spec)
        t = F.pad(t, [n for behind in reversed(way.missing) for n in (0, behind)])
    if (form := region.layouts.form_in(spec, t.shape)) is not None:
        return form.to_lanes(t), way.axes
    t = region.layouts.reshard(t, spec)
    if way.shape is not None:
        t = t.view(way.shape)
    if way.order is not None:
        t = t.permute(way.order)
    return t, way.axes


def _from_shards(
    region: Region,
    t: Tensor,
    spec: PartitionSpec,
    axes: tuple[str, ...],
    where: Callable[[], str],
    known: _Sizes,
) -> Tensor:
    """The inverse of `_to_shards`: the leading dimensions become parts of those that the spec
    shards over the axes."""
    form = None if known else region.layouts.form_out(spec, axes, t.shape)
    if form is not None:
        return form.from_lanes(t)
    if not axes:
        return region.layouts.reshard(t, spec)
    ends: dict[int, int] = {}  # by dimension that has been padded
    for dim, entry in enumerate(spec):
        names = _axes_of(entry)
        largest = t.shape[len(axes) + dim]
        found = known.get((names, largest), set()) if names else set()
        if len(found) > 1:
            raise ValueError(
                f"shard_map: {_name(region.f)}: {where()}: dimension {dim} has shards of {largest} "
                f"along {', '.join(map(repr, names))}, as have dimensions of arguments of sizes "
                f"{' and '.join(map(str, sorted(found)))}, so that its own size is not known; "
                "return it with one more dimension, t[None], that is sharded in place of this one"
            )
        for size in found:
            ends[dim] = size
    order, shape = region.layouts.way_out(spec, axes, t.shape)
    if order is not None:
        t = t.permute(order)
    t = region.layouts.reshard(t.reshape(shape), spec)
    for dim, end in ends.items():
        if end < t.shape[dim]:
            t = region.layouts.reshard(t.narrow(dim, 0, end), spec)
    return t


@dataclass
class _WayIn:
    """How a tensor becomes shards. A size or order that changes nothing is None."""

    missing: Sequence[int] | None  # by dimension, how much the last shards lack
    shard: Sequence[int]
    shape: Sequence[int] | None  # each sharded dimension as those of its axes and that of a shard
    order: list[int] | None  # which brings the axes to the front
    axes: tuple[str, ...]  # in the region's order


class _Layouts:
    """How tensors become shards along manual axes, and shards tensors. What depends on specs and
    shapes only is computed once."""

    def __init__(self, mesh: Mesh, axes: tuple[str, ...]) -> None:
        self.mesh = mesh
        self.axes = axes
        self.sizes = mesh.shape
        self._ways: dict[Any, Any] = {}
        self._texts: dict[PartitionSpec, str] = {}
        self._names: dict[PartitionSpec, list[str]] = {}
        self.op = torch.ops.spmd.reshard.default
        self.mesh_text = mesh._text

    def names(self, spec: PartitionSpec) -> list[str]:
        """The axes that a spec names. Errors: ValueError, as `_axes_in`."""
        found = self._names.get(spec)
        return _remembered(self._names, spec, _axes_in(spec)) if found is None else found

    def reshard(self, t: Tensor, spec: PartitionSpec) -> Tensor:
        """The tensor with the sharding that it has outside."""
        result: Tensor = self.op(t, self.mesh_text, self.text(spec))
        return result

    def text(self, spec: PartitionSpec) -> str:
        """The spec outside, as text: axes that are not manual are the compiler's."""
        text = self._texts.get(spec)
        if text is None:
            outside = list(spec)
            if len(self.axes) < len(self.sizes):
                outside = [UNCONSTRAINED if entry is None else entry for entry in spec]
            text = _remembered(self._texts, spec, ops.spec_text(outside))
        return text

    def way_in(self, spec: PartitionSpec, shape: Sequence[int]) -> _WayIn:
        found: _WayIn = self._known(self._way_in, spec, shape)
        return found

    def _way_in(self, spec: PartitionSpec, shape: Sequence[int]) -> _WayIn:
        missing: list[int] = []
        shard: list[int] = []
        apart: list[int] = []
        places: dict[str, int] = {}
        rest: list[int] = []
        for entry, size in zip(spec, shape):
            axes = _axes_of(entry)
            count = math.prod(self.sizes[axis] for axis in axes)
            missing.append(-size % count)
            shard.append((size + missing[-1]) // count)
            for axis in axes:
                places[axis] = len(apart)
                apart.append(self.sizes[axis])
            rest.append(len(apart))
            apart.append(shard[-1])
        named = tuple(axis for axis in self.axes if axis in places)
        return _WayIn(
            missing if any(missing) else None,
            shard,
            apart if named else None,
            _order([*(places[axis] for axis in named), *rest]),
            named,
        )

    def way_out(
        self, spec: PartitionSpec, axes: tuple[str, ...], shape: Sequence[int]
    ) -> tuple[list[int] | None, list[int]]:
        """For shards whose leading dimensions are the axes: the order that brings these in front of
        the dimensions that they shard, and the shape of the whole."""
        found: tuple[list[int] | None, list[int]] = self._known(self._way_out, spec, axes, shape)
        return found

    def lanes(
        self,
        spec: PartitionSpec,
        whole: Sequence[int],
        apart: Sequence[int] | None,
        order: Sequence[int] | None,
    ) -> _C.LaneForm:
        """What puts lanes in front of a tensor of sizes `whole`, and takes them back."""
        return _C.LaneForm(self.mesh_text, self.text(spec), whole, apart or (), order or ())

    def form_in(self, spec: PartitionSpec, shape: Sequence[int]) -> _C.LaneForm | None:
        """The same for a tensor that the axes divide; None for sizes that are not known."""
        return self._form(self._form_in, spec, shape)

    def form_out(
        self, spec: PartitionSpec, axes: tuple[str, ...], shape: Sequence[int]
    ) -> _C.LaneForm | None:
        """The same for shards whose leading dimensions are the axes; None for sizes that are not
        known."""
        return self._form(self._form_out, spec, axes, shape)

    def _form(self, compute: Callable[..., _C.LaneForm], *args: Any) -> _C.LaneForm | None:
        key = (compute.__name__, *args)
        try:
            found: _C.LaneForm | None = self._ways.get(key)
        except TypeError:  # sizes that are not known have no hash
            return None
        return found or _remembered(self._ways, key, compute(*args))

    def _form_in(self, spec: PartitionSpec, shape: Sequence[int]) -> _C.LaneForm:
        way = self.way_in(spec, shape)
        return self.lanes(spec, shape, way.shape, way.order)

    def _form_out(
        self, spec: PartitionSpec, axes: tuple[str, ...], shape: Sequence[int]
    ) -> _C.LaneForm:
        back, whole = self._way_out(spec, axes, shape)
        if back is None:
            return self.lanes(spec, whole, shape if axes else None, None)
        order = [back.index(d) for d in range(len(back))]
        return self.lanes(spec, whole, [shape[d] for d in back], order)

    def _known(self, compute: Callable[..., Any], *key: Any) -> Any:
        """What `compute` says of the key; keys differ in length between the functions."""
        try:
            found = self._ways.get(key)
        except TypeError:  # sizes that are not known have no hash
            return compute(*key)
        return found or _remembered(self._ways, key, compute(*key))

    def _way_out(
        self, spec: PartitionSpec, axes: tuple[str, ...], shape: Sequence[int]
    ) -> tuple[list[int] | None, list[int]]:
        order: list[int] = []
        whole: list[int] = []
        for dim, entry in enumerate(spec, len(axes)):
            sources = [axes.index(axis) for axis in _axes_of(entry)]
            order += [*sources, dim]
            whole.append(math.prod(shape[d] for d in (*sources, dim)))
        return _order(order), whole


@functools.lru_cache(maxsize=64)
def _layouts(mesh: Mesh, axes: tuple[str, ...]) -> _Layouts:
    return _Layouts(mesh, axes)


def _order(order: list[int]) -> list[int] | None:
    return None if order == list(range(len(order))) else order


def _remembered(memory: dict[Any, Any], key: Any, value: Any) -> Any:
    if len(memory) >= 1024:  # of a program whose shapes never repeat
        memory.clear()
    memory[key] = value
    return value


def _axes_of(entry: Any) -> tuple[str, ...]:
    return (entry,) if isinstance(entry, str) else tuple(entry or ())


# --- what a region refuses ---


_READ = (
    "a shard's values cannot be read inside a manual region, since each device has its own; return "
    "the value, or use torch.where"
)
_SHAPE = (
    "the shape of a result depends on a shard's values, but all devices run one program; use "
    "torch.where, or compute it outside of the region"
)
_BACKWARD = (
    "backward() cannot run inside a manual region; call it outside on what the region returns, or "
    "use torch.func.grad inside"
)
# What PyTorch says, and what it means in a region.
_EXPLAINED = {
    ".item()": _READ,
    "data pointer of Tensor that doesn't have storage": _READ,
    "Cannot access storage of BatchedTensorImpl": _READ,
    "device type tensor to numpy": _READ,
    "vmap over torch.allclose": _READ,
    "Batching rule not implemented for aten::equal": _READ,
    "dynamic shape": _SHAPE,
    "stack expects each tensor to be equal size": _SHAPE,
    "backward() called inside a functorch transform": _BACKWARD,
    "requires_grad_()": _BACKWARD.replace("backward()", "requires_grad_()", 1),
    "data-dependent control flow": "Python cannot branch on a shard's values inside a manual "
    "region, since each device has its own; use torch.where",
    "higher order operator": "torch.cond and the like cannot be used inside a manual region; use "
    "torch.where, or a Python branch on what is the same on all devices",
    "inplace arithmetic": "a value that does not vary along a manual axis is overwritten in place "
    "by one that varies; make it vary first: x = spmd.lax.pvary(x, axis)",
    "a shard's values cannot be read": _READ,
    "the shape of a result depends on a shard's values": _SHAPE,
    "overwritten in place by one that varies": "a value that does not vary along a manual axis "
    "is overwritten in place by one that varies; make it vary first: x = spmd.lax.pvary(x, axis)",
    "doesn't match the broadcast shape": "a value is overwritten in place by one of another shape, "
    "or one that does not vary along a manual axis by one that varies; then make it vary first: "
    "x = spmd.lax.pvary(x, axis)",
    "inplace randomness on an unbatched tensor": "a value that does not vary along a manual axis "
    "is overwritten in place by random numbers, which vary; fill it outside of the region, or make "
    "it vary first: x = spmd.lax.pvary(x, axis)",
    "under vmap transform is not allowed": "t.data cannot be used inside a manual region; use "
    "t.detach(), and t.copy_() to write",
    "Can't detach views in-place": "a shard cannot be copied by torch.tensor or detached in place; "
    "use t.detach().clone()",
    "process group has not been initialized": "torch.distributed's collectives need a process "
    "group, and a manual region has axes; use spmd.lax.psum and the like, or torch's functional "
    "collectives with the name of an axis as their group",
}
_FROM_OUTSIDE = (
    "from outside that is sharded over the manual axis"  # as csrc/trace/recorder/region.cc
)
_NO_RULE = re.compile(r"Batching rule not implemented for (\S+?)[.;,]?\s")
_VMAPS_WORDS = re.compile(r"vmap|functorch|BatchedTensor")


def _explain(f: Callable[..., Any], error: Exception) -> None:
    """Raises an error in the words of regions for those that vmap raises in its own."""
    words = str(error)
    if words.startswith("shard_map:"):
        return
    if isinstance(error, ValueError) and _FROM_OUTSIDE in words:
        which = words.partition("\n")[0]
        raise ValueError(
            f"shard_map: {_name(f)} uses {which}; pass it as an argument with a spec"
        ) from error
    explanation = next((e for phrase, e in _EXPLAINED.items() if phrase in words), None)
    if explanation is None and (found := _NO_RULE.search(words)) is not None:
        explanation = (
            f"{found[1]} cannot be used inside a manual region, because PyTorch's vmap, which runs "
            "the shards, has no rule for it; call it outside"
        )
    if explanation is None and _VMAPS_WORDS.search(words):
        explanation = (
            "PyTorch's vmap, which runs the shards of a manual region, refuses this, so do it "
            f"outside: {words}"
        )
    if explanation is not None:
        raise RuntimeError(f"shard_map: {_name(f)}: {explanation}") from error
