# SPDX-License-Identifier: Apache-2.0
"""Marks on what modules take and return, set from outside of the model by forward hooks."""

from __future__ import annotations

import contextlib
import fnmatch
import re
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn

from torch_spmd import _arguments
from torch_spmd._compat import forward_hooks, forward_pre_hooks, functorch, pytree
from torch_spmd.sharding import ops
from torch_spmd.sharding.marks import mark_of, mark_sharding, reshard
from torch_spmd.sharding.mesh import Mesh
from torch_spmd.sharding.spec import UNCONSTRAINED, PartitionSpec, to_spec

Pattern = str | re.Pattern[str]


@dataclass(frozen=True)
class Cut:
    """A layout for tensors of any rank: `axes` shard dimension `dim`, which may be negative, and
    the other dimensions are left open."""

    dim: int
    axes: Any

    def spec(self, rank: int) -> PartitionSpec:
        """Errors: ValueError if a tensor of that rank does not have the dimension."""
        if not -rank <= self.dim < rank:
            raise ValueError(f"a tensor of {rank} dimensions has no dimension {self.dim}")
        entries: list[Any] = [UNCONSTRAINED] * rank
        entries[self.dim] = self.axes
        return PartitionSpec(*entries)


Layout = PartitionSpec | Cut | None
"""How one tensor is sharded; None leaves it as it is."""


@dataclass(frozen=True)
class Layouts:
    """The layouts of a module's arguments or of its results.

    `first` is for the first tensor; else `positional` and `named` are for arguments or results by
    position and by name.
    """

    first: Layout = None
    positional: tuple[Layout, ...] = ()
    named: Mapping[str, Layout] | None = None

    def __bool__(self) -> bool:
        layouts = [self.first, *self.positional, *(self.named or {}).values()]
        return any(layout is not None for layout in layouts)


class LayoutHook:
    """A forward hook or pre-hook that changes how tensors are sharded, and no values."""


class MarkInputs(LayoutHook):
    """A forward pre-hook that shards a module's arguments. It can be copied and pickled."""

    def __init__(self, mesh: Mesh, layouts: Layouts, name: str) -> None:
        self.mesh, self.layouts, self.name = mesh, layouts, name

    def __call__(self, module: nn.Module, args: Any, kwargs: Any) -> tuple[Any, Any]:
        where = f"input of module {self.name!r}"
        if self.layouts.first is not None:
            args, kwargs = _first_marked((args, kwargs), self.mesh, self.layouts.first, where)
            return args, kwargs
        args = _positions_marked(tuple(args), self.mesh, self.layouts.positional, where)
        return args, _names_marked(kwargs, self.mesh, self.layouts.named or {}, where)


class MarkOutputs(LayoutHook):
    """A forward hook that shards a module's results. It can be copied and pickled."""

    def __init__(self, mesh: Mesh, layouts: Layouts, name: str) -> None:
        self.mesh, self.layouts, self.name = mesh, layouts, name

    def __call__(self, module: nn.Module, args: Any, result: Any) -> Any:
        where = f"output of module {self.name!r}"
        if self.layouts.first is not None:
            return _first_marked(result, self.mesh, self.layouts.first, where)
        if self.layouts.named:
            return _names_marked(result, self.mesh, self.layouts.named, where)
        if isinstance(result, (tuple, list)):
            marked = _positions_marked(tuple(result), self.mesh, self.layouts.positional, where)
            fields = hasattr(result, "_fields")  # of a named tuple
            return type(result)(*marked) if fields else type(result)(marked)
        return _positions_marked((result,), self.mesh, self.layouts.positional, where)[0]


def install(module: nn.Module, hook: MarkInputs | MarkOutputs) -> None:
    """Registers the hook; one of the same kind that is there already is replaced."""
    if isinstance(hook, MarkInputs):
        remove_hooks(forward_pre_hooks(module), MarkInputs)
        module.register_forward_pre_hook(hook, with_kwargs=True)
    else:
        remove_hooks(forward_hooks(module), MarkOutputs)
        module.register_forward_hook(hook)


def remove_hooks(hooks: dict[int, Callable[..., Any]], kinds: type | tuple[type, ...]) -> None:
    """Removes the hooks of these classes."""
    for key in [key for key, hook in hooks.items() if isinstance(hook, kinds)]:
        del hooks[key]


@contextlib.contextmanager
def without_hooks(module: nn.Module) -> Iterator[None]:
    """Takes the hooks for layouts off a module and those in it, as long as it lasts."""
    every = [
        hooks
        for child in module.modules()
        for hooks in (forward_pre_hooks(child), forward_hooks(child))
    ]
    before = [dict(hooks) for hooks in every]
    for hooks in every:
        remove_hooks(hooks, LayoutHook)
    try:
        yield
    finally:
        for hooks, old in zip(every, before, strict=True):
            hooks.clear()
            hooks.update(old)


@dataclass
class Plan:
    """Hooks that are to be installed, with the layouts by the module's name, as they were given,
    and the patterns that matched nothing."""

    hooks: list[tuple[nn.Module, MarkInputs | MarkOutputs]]
    found: dict[str, Any]
    unmatched: list[Pattern]

    def install(self) -> None:
        for module, hook in self.hooks:
            install(module, hook)


def plan(caller: str, what: str, module: nn.Module, mesh: Mesh, rules: Any) -> Plan:
    """The hooks for `rules`, a mapping from patterns over the names of modules ("" is the module
    itself) to layouts. `what` is "inputs" or "outputs". Installs nothing.

    Errors: TypeError, ValueError, IndexError.
    """
    given = _arguments.mapping(caller, what, rules, "a mapping from names of modules to specs")
    layouts = {_pattern(caller, what, p): _layouts(caller, what, p, s) for p, s in given.items()}
    for pattern, layout in layouts.items():
        _check_axes(f"{caller}: {what}[{_arguments.plain(pattern)}]", mesh, layout)
    kind = MarkInputs if what == "inputs" else MarkOutputs
    result = Plan([], {}, list(layouts))
    for name, child in module.named_modules():
        matching = [pattern for pattern in layouts if matches(pattern, name)]
        result.unmatched = [p for p in result.unmatched if p not in matching]
        if matching:
            result.hooks.append((child, kind(mesh, layouts[matching[0]], name)))
            result.found[name] = given[matching[0]]
    return result


def matches(pattern: Pattern, name: str) -> bool:
    """Whether a name is the pattern's: a glob in which `*` crosses dots, or a compiled regular
    expression, over the whole name."""
    if isinstance(pattern, re.Pattern):
        return pattern.fullmatch(name) is not None
    return fnmatch.fnmatchcase(name, pattern)


def _pattern(caller: str, what: str, pattern: Any) -> Pattern:
    if not isinstance(pattern, re.Pattern):
        return _arguments.text(caller, f"a pattern of {what}", pattern)
    if not isinstance(pattern.pattern, str):
        raise TypeError(f"{caller}: {what}: pattern {pattern!r} is over bytes, not text")
    return pattern


def _layouts(caller: str, what: str, pattern: Any, given: Any) -> Layouts:
    where = f"{caller}: {what}[{_arguments.plain(pattern)}]"
    try:
        if isinstance(given, Mapping):
            named = _arguments.mapping(caller, what, given, "a mapping from names to specs")
            return Layouts(named={_name(where, n): _layout(s) for n, s in named.items()})
        if isinstance(given, (list, tuple)):
            items = _arguments.items(caller, what, given, "specs by position")
            if isinstance(given, list) or any(isinstance(item, PartitionSpec) for item in items):
                return Layouts(positional=tuple(_layout(item) for item in items))
        return Layouts(first=_layout(given))
    except (TypeError, ValueError) as error:
        kind = TypeError if isinstance(error, TypeError) else ValueError
        raise kind(f"{where}: {error}") from None


def _name(where: str, name: Any) -> str:
    return _arguments.text(where, "a name", name)


def _layout(given: Any) -> Layout:
    return None if given is None else to_spec(given)


def _check_axes(caller: str, mesh: Mesh, layouts: Layouts) -> None:
    for layout in (layouts.first, *layouts.positional, *(layouts.named or {}).values()):
        if isinstance(layout, PartitionSpec):
            ops.check_fits(caller, len(layout), mesh._core, layout)


def _first_marked(tree: Any, mesh: Mesh, layout: Layout, where: str) -> Any:
    leaves, form = pytree.tree_flatten(tree)
    for position, leaf in enumerate(leaves):
        if is_markable(leaf):
            leaves[position] = constrained(leaf, mesh, layout, where)
            return pytree.tree_unflatten(leaves, form)
    return tree


def _positions_marked(
    values: tuple[Any, ...], mesh: Mesh, layouts: Iterable[Layout], where: str
) -> tuple[Any, ...]:
    marked = list(values)
    for position, layout in zip(range(len(marked)), layouts):
        marked[position] = constrained(
            marked[position], mesh, layout, f"{where}, number {position}"
        )
    return tuple(marked)


def _names_marked(values: Any, mesh: Mesh, layouts: Mapping[str, Layout], where: str) -> Any:
    """A mapping, or an object with attributes, with the tensors of these names marked."""
    if isinstance(values, dict) and type(values) is dict:
        values = dict(values)
    for name, layout in layouts.items():
        if isinstance(values, Mapping):
            if name in values:
                values[name] = constrained(values[name], mesh, layout, f"{where}, {name!r}")  # type: ignore[index]
        elif isinstance(getattr(values, name, None), Tensor):
            setattr(
                values, name, constrained(getattr(values, name), mesh, layout, f"{where}, {name}")
            )
    return values


def is_markable(value: Any) -> bool:
    """Whether it is a tensor that a mark can be put on."""
    return (
        isinstance(value, Tensor)
        and value.device.type == "spmd"
        and value.layout == torch.strided
        and not value.is_nested
    )


def constrained(value: Any, mesh: Mesh, layout: Layout, where: str) -> Any:
    """The tensor with the layout. Data that has no mark yet gets one, so that it is uploaded shard
    by shard; anything else is resharded, and the gradient with it."""
    if layout is None or not is_markable(value):
        return value
    try:
        spec = layout.spec(value.dim()) if isinstance(layout, Cut) else layout
        if _is_unmarked_data(value):
            return mark_sharding(value, mesh, spec)
        return reshard(value, mesh, spec)
    except (ValueError, IndexError) as error:
        raise type(error)(f"{where}: {error}") from None


def _is_unmarked_data(value: Tensor) -> bool:
    wrapped = functorch.is_functorch_wrapped_tensor(value) or ops.is_traced(value)
    if wrapped or value.requires_grad or not value.is_leaf:
        return False
    return mark_of(value) is None
