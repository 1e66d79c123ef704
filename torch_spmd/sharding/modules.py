# SPDX-License-Identifier: Apache-2.0
"""Sharding a whole module by rules over the names of its parameters."""

from __future__ import annotations

import re
import warnings
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, TypeVar

from torch import nn

from torch_spmd import _arguments
from torch_spmd.sharding import activations, drawing, ops
from torch_spmd.sharding.activations import matches
from torch_spmd.sharding.global_mesh import mesh_or_global
from torch_spmd.sharding.marks import clear_sharding, mark_all, mark_of
from torch_spmd.sharding.mesh import Mesh
from torch_spmd.sharding.spec import PartitionSpec, SpecLike, of_rank, to_spec

if TYPE_CHECKING:
    from torch.distributed.device_mesh import DeviceMesh

Pattern = str | re.Pattern[str]
PatternT = TypeVar("PatternT", bound=Pattern)


@dataclass
class ShardReport:
    """What a function that shards a module did, by parameter name. `print` shows the first 1,000
    lines and how many more there are; `text(limit=None)` has all.

    `kept` are marks that parameters had already and that no rule replaced. `inputs` and `outputs`
    are the layouts of activations, by the module's name. `unsupported` are styles of a model's own
    plan that are not known, by the name for which the plan gives them; the compiler chooses there.
    """

    sharded: dict[str, PartitionSpec] = field(default_factory=dict)
    kept: dict[str, PartitionSpec] = field(default_factory=dict)
    replicated: list[str] = field(default_factory=list)
    unmatched: list[Pattern] = field(default_factory=list)
    inputs: dict[str, Any] = field(default_factory=dict)
    outputs: dict[str, Any] = field(default_factory=dict)
    unsupported: dict[str, str] = field(default_factory=dict)

    def text(self, limit: int | None = 1000) -> str:
        """The first `limit` lines, or all.

        Errors: TypeError or ValueError for a limit that is neither None nor at least 1.
        """
        if limit is not None:
            limit = _arguments.integer("ShardReport.text", "limit", limit, 1)
        return drawing.first_lines(self._whole(), limit, "lines: text(limit=None) has all")

    def __str__(self) -> str:
        return self.text()

    def _repr_html_(self) -> str:
        rows = [(name, repr(spec), "") for name, spec in self.sharded.items()]
        rows += [(name, repr(spec), "as before") for name, spec in self.kept.items()]
        rows += [(name, "replicated", "") for name in self.replicated]
        for what, marked in (("input of", self.inputs), ("output of", self.outputs)):
            rows += [(name or "the module", repr(spec), what) for name, spec in marked.items()]
        note = "\n".join(f"rule {pattern!r} matched nothing" for pattern in self.unmatched)
        if len(rows) > 1000:
            note = f"… and {len(rows) - 1000:,} more lines: text(limit=None) has all\n{note}"
        return drawing.html(("parameter", "spec", ""), rows[:1000], note.strip())

    def _whole(self) -> str:
        width = max(map(len, [*self.sharded, *self.kept, *self.replicated, "parameter"]))
        lines = [f"{name:{width}}  {spec!r}" for name, spec in self.sharded.items()]
        lines += [f"{name:{width}}  {spec!r}, as before" for name, spec in self.kept.items()]
        lines += [f"{name:{width}}  replicated" for name in self.replicated]
        for what, marked in (("input", self.inputs), ("output", self.outputs)):
            lines += [
                f"{what} of {name or 'the module'}  {spec!r}" for name, spec in marked.items()
            ]
        lines += [f"rule {pattern!r} matched nothing" for pattern in self.unmatched]
        lines += [
            f"{name}: style {style!r} is not known" for name, style in self.unsupported.items()
        ]
        return "\n".join(lines)


def shard_module(
    module: nn.Module,
    mesh: Mesh | DeviceMesh | None,
    rules: Mapping[PatternT, SpecLike],
    *,
    materialize: bool = False,
    inputs: Mapping[PatternT, Any] | None = None,
    outputs: Mapping[PatternT, Any] | None = None,
) -> ShardReport:
    """Marks every parameter of a module: by the first rule that matches its name, else replicated.

    Args:
        module: on `spmd`, or on `meta` with `materialize`.
        mesh: the mesh; None means the global one.
        rules: ordered; a pattern is a glob over the whole name (`"*.mlp.up.weight"`, `*` crosses
            dots) or a compiled regular expression; a spec has one entry per dimension, or fewer.
        materialize: initializes a module that is on `meta` by its own `reset_parameters`, sharded
            from the start, so that no parameter is ever stored as a whole.
        inputs, outputs: marks on activations, from outside of the model: patterns over the names of
            modules ("" is `module` itself; the first that matches counts), and for each a spec for
            the first tensor, a list of specs (or None) by position, or a dict by name. They are
            forward hooks, which copies of the module keep; a later call replaces those of a module.

    A parameter with several names (tied) uses the first rule that any of them matches. A parameter
    that is marked already keeps its mark if no rule matches. A rule that matches nothing gives a
    warning.

    Errors:
        TypeError: an argument of another kind; a pattern that is neither text nor compiled.
        ValueError: as `mark_sharding`, starting with the parameter's name; a parameter on `meta`
            without `materialize`, or one that no `reset_parameters` would initialise.

    Example:
        >>> import torch, torch_spmd as spmd
        >>> mesh = spmd.make_mesh((8,), ("model",))
        >>> layer = torch.nn.Linear(16, 32).to("spmd")
        >>> print(spmd.shard_module(layer, mesh, {"weight": ("model", None)}))
        weight     P('model', None)
        bias       replicated
        >>> print(spmd.shard_module(layer, mesh, {}, outputs={"": ("model", None)}))
        weight     P('model', None), as before
        bias       P(None), as before
        output of the module  ('model', None)
    """
    if not isinstance(module, nn.Module):
        raise TypeError(
            f"shard_module: module must be an nn.Module; got {_arguments.shown(module)}"
        )
    mesh = mesh_or_global("shard_module", mesh)
    specs = read_rules("shard_module", rules)
    materialize = _arguments.boolean("shard_module", "materialize", materialize)
    plans = {
        what: activations.plan("shard_module", what, module, mesh, {} if given is None else given)
        for what, given in (("inputs", inputs), ("outputs", outputs))
    }
    if materialize:
        _check_initialisable(module)
        for parameter, names in _names_by_parameter(module).items():
            spec = _spec(parameter, names[0], specs, _patterns(specs, names))
            ops.check_fits(_where(names[0]), parameter.dim(), mesh._core, spec)
        module.to_empty(device="spmd")
    report = _mark_parameters(module, mesh, specs)
    if materialize:
        for child in module.modules():
            if callable(reset := getattr(child, "reset_parameters", None)):
                reset()
    names = [name for name, _ in module.named_parameters()]
    _warn_of_unmatched("rule", "parameter", report.unmatched, names)
    names = [name for name, _ in module.named_modules() if name]
    for what, plan in plans.items():
        plan.install()
        setattr(report, what, plan.found)
        report.unmatched += plan.unmatched
        _warn_of_unmatched(f"{what} pattern", "module", plan.unmatched, names)
    return report


def shard_module_again(
    caller: str,
    module: nn.Module,
    mesh: Mesh,
    rules: Mapping[re.Pattern[str], PartitionSpec],
    materialize: bool,
) -> ShardReport:
    """`shard_module` where rules replace marks that parameters have; these are back if it fails."""
    before = []
    for name, parameter in module.named_parameters():
        if parameter.device.type != "spmd" or not any(matches(p, name) for p in rules):
            continue
        mark = mark_of(parameter)
        if mark is not None:
            before.append((f"{caller}: parameter {name!r}", parameter, mark))
    for _, parameter, _ in before:
        clear_sharding(parameter)
    try:
        return shard_module(module, mesh, rules, materialize=materialize)
    except BaseException:
        for where, parameter, sharding in before:
            clear_sharding(parameter)
            mark_all(sharding.mesh, [(where, parameter, sharding.spec)])
        raise


def _warn_of_unmatched(
    what: str, kind: str, patterns: Sequence[Pattern], names: Sequence[str]
) -> None:
    for pattern in patterns:
        warnings.warn(
            f"shard_module: {what} {pattern!r} matched no {kind}; the names start with "
            + ", ".join(map(repr, names[:3])),
            stacklevel=3,
        )


def read_rules(caller: str, rules: Any) -> dict[Pattern, PartitionSpec]:
    name = "rules" if caller in ("shard_module", "load") else "specs"
    what = "a mapping from patterns to specs"
    given = _arguments.mapping(caller, name, rules, what)
    specs: dict[Pattern, PartitionSpec] = {}
    for pattern, spec in given.items():
        if isinstance(pattern, re.Pattern):
            if not isinstance(pattern.pattern, str):
                raise TypeError(f"{caller}: {name}: pattern {pattern!r} is over bytes, not text")
        else:
            pattern = _arguments.text(caller, f"a pattern of {name}", pattern)
        try:
            specs[pattern] = to_spec(spec)
        except (TypeError, ValueError) as error:
            kind = TypeError if isinstance(error, TypeError) else ValueError
            where = f"{name}[{_arguments.plain(pattern)}]"
            raise kind(f"{caller}: {where}: {error}") from None
    return specs


def matching_spec(
    specs: Mapping[Pattern, PartitionSpec], names: Sequence[str]
) -> PartitionSpec | None:
    """Of the first pattern that matches one of a parameter's names."""
    patterns = _patterns(specs, names)
    return specs[patterns[0]] if patterns else None


def _mark_parameters(
    module: nn.Module, mesh: Mesh, specs: Mapping[Pattern, PartitionSpec]
) -> ShardReport:
    """Marks all parameters, or none if one cannot be marked."""
    report = ShardReport()
    matched: set[Pattern] = set()
    items = []
    for parameter, names in _names_by_parameter(module).items():
        patterns = _patterns(specs, names)
        matched.update(patterns)
        spec = of_rank(_spec(parameter, names[0], specs, patterns), parameter.dim())
        if parameter.is_meta:
            raise ValueError(
                f"shard_module: parameter {names[0]!r} is on 'meta'; pass materialize=True to "
                "initialise it sharded"
            )
        if not patterns and parameter.device.type == "spmd":
            before = mark_of(parameter)
            if before is not None:
                report.kept[names[0]] = before.spec
                continue
        items.append((f"{_where(names[0])}: mark_sharding", parameter, spec))
        if patterns and any(dim is not None for dim in spec):
            report.sharded[names[0]] = spec
        else:
            report.replicated.append(names[0])
    mark_all(mesh, items)
    report.unmatched = [pattern for pattern in specs if pattern not in matched]
    return report


def _where(name: str) -> str:
    return f"shard_module: parameter {name!r}"


def _patterns(specs: Mapping[Pattern, PartitionSpec], names: Sequence[str]) -> list[Pattern]:
    return [p for p in specs if any(matches(p, name) for name in names)]


def _spec(
    parameter: nn.Parameter,
    name: str,
    specs: Mapping[Pattern, PartitionSpec],
    patterns: Sequence[Pattern],
) -> PartitionSpec:
    if nn.parameter.is_lazy(parameter):
        raise ValueError(
            f"{_where(name)} has no shape yet; run the module once on a batch before it is sharded"
        )
    return specs[patterns[0]] if patterns else PartitionSpec()


def _names_by_parameter(module: nn.Module) -> dict[nn.Parameter, list[str]]:
    names: dict[nn.Parameter, list[str]] = {}
    for name, parameter in module.named_parameters(remove_duplicate=False):
        names.setdefault(parameter, []).append(name)
    return names


def _check_initialisable(module: nn.Module) -> None:
    for name, child in module.named_modules():
        own = [*child.named_parameters(recurse=False), *child.named_buffers(recurse=False)]
        if own and not callable(getattr(child, "reset_parameters", None)):
            raise ValueError(
                f"shard_module: module {name or type(child).__name__!r} ({type(child).__name__}) "
                f"holds {own[0][0]!r} and has no reset_parameters() to initialise it; add one, or "
                "build the module under `with torch.device('spmd'):` instead of on 'meta'"
            )
