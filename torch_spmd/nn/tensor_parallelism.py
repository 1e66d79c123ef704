# SPDX-License-Identifier: Apache-2.0
"""Tensor parallelism by PyTorch's own plans: `tensor_parallel`."""

from __future__ import annotations

import fnmatch
import re
import warnings
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from torch import nn

from torch_spmd import _arguments
from torch_spmd.sharding.activations import Cut, Layout, Layouts, MarkInputs, MarkOutputs, install
from torch_spmd.sharding.global_mesh import mesh_or_global, only_axis
from torch_spmd.sharding.marks import mark_of
from torch_spmd.sharding.mesh import Mesh, checked_axis
from torch_spmd.sharding.modules import ShardReport, shard_module_again
from torch_spmd.sharding.spec import PartitionSpec

if TYPE_CHECKING:
    from torch.distributed.device_mesh import DeviceMesh


def tensor_parallel(
    module: nn.Module,
    mesh: Mesh | DeviceMesh | None,
    plan: Any,
    *,
    axis: str | None = None,
    materialize: bool = False,
) -> ShardReport:
    """Shards a module by a plan that was written for `torch.distributed.tensor.parallel`.

    `ColwiseParallel`, `RowwiseParallel`, `SequenceParallel`, `PrepareModuleInput`,
    `PrepareModuleOutput` and `PrepareModuleInputOutput` are read as they are: parameters get marks,
    and activations that a style wants sharded (`Shard(dim)`) are resharded by forward hooks, which
    leave the other dimensions, for instance a sharded batch, open. Where a style wants
    `Replicate()` nothing is set: values are global, and the compiler gathers where that is needed.
    So a module sees whole tensors, never one device's part; `use_local_output` has no effect.

    Args:
        module: on `spmd`, or on `meta` with `materialize`.
        mesh: the mesh, or a DeviceMesh or a slice of one; None means the global one.
        plan: as `parallelize_module` takes it: a style, or a mapping from names of submodules to
            styles. `*` stands for any text between two dots; "" is the module itself.
        axis: the axis of tensor parallelism. None: the only one of a slice, such as
            `device_mesh["tp"]`; "model" or "tp" if the mesh has one of them; else its only axis.
        materialize: as in `shard_module`.

    A name that matches nothing gives an entry in the report's `unmatched` and a warning.

    Errors:
        TypeError: an argument of another kind.
        NotImplementedError: a style of another class, or a style for a class of modules that
            PyTorch does not support either.
        ValueError: an axis that the mesh does not have; `Partial()` as a wanted layout; a parameter
            whose dimension another axis shards already; as `shard_module`.

    Example:
        >>> import torch, torch_spmd as spmd
        >>> from torch.distributed.tensor.parallel import ColwiseParallel, RowwiseParallel
        >>> mesh = spmd.make_mesh((8,), ("model",))
        >>> mlp = torch.nn.Sequential(torch.nn.Linear(8, 32), torch.nn.Linear(32, 8)).to(
        ...     "spmd"
        ... )
        >>> plan = {"0": ColwiseParallel(), "1": RowwiseParallel()}
        >>> print(spmd.tensor_parallel(mlp, mesh, plan))
        0.weight   P('model', None)
        0.bias     P('model')
        1.weight   P(None, 'model')
        1.bias     replicated
    """
    if not isinstance(module, nn.Module):
        raise TypeError(
            f"tensor_parallel: module must be an nn.Module; got {_arguments.shown(module)}"
        )
    axis = only_axis(mesh) if axis is None else axis
    mesh = mesh_or_global("tensor_parallel", mesh)
    axis = _axis(mesh, axis)
    wanted = _Wanted()
    unmatched = []
    for pattern, style in _styles(plan):
        found = list(_submodules(module, pattern))
        if not found:
            unmatched.append(pattern)
        for name, child in found:
            where = f"tensor_parallel: plan[{pattern!r}]: module {name!r}"
            _read(wanted, where, style, name, child, axis)
    rules = _rules(module, wanted.weights, axis)
    report = shard_module_again("tensor_parallel", module, mesh, rules, materialize)
    for name, layouts in wanted.inputs.items():
        install(module.get_submodule(name), MarkInputs(mesh, layouts, name))
        report.inputs[name] = layouts
    for name, layouts in wanted.outputs.items():
        install(module.get_submodule(name), MarkOutputs(mesh, layouts, name))
        report.outputs[name] = layouts
    _warn_of_unmatched(module, unmatched)
    report.unmatched += unmatched
    return report


@dataclass
class _Wanted:
    """What the styles want: of weights the sharded dimension by name, of activations the layouts by
    the module's name."""

    weights: dict[str, int] = field(default_factory=dict)
    inputs: dict[str, Layouts] = field(default_factory=dict)
    outputs: dict[str, Layouts] = field(default_factory=dict)


def _axis(mesh: Mesh, axis: Any) -> str:
    if axis is None:
        usual = [name for name in ("model", "tp") if name in mesh.axis_names]
        if not usual and len(mesh.axis_names) > 1:
            raise ValueError(
                f"tensor_parallel: the mesh has axes {mesh.axis_names}; say which one is the axis "
                "of tensor parallelism: axis=…"
            )
        return usual[0] if usual else mesh.axis_names[0]
    return checked_axis("tensor_parallel", "axis", mesh, axis)


def _styles(plan: Any) -> list[tuple[str, Any]]:
    if not isinstance(plan, Mapping):
        return [("", _style("plan", plan))]
    what = "a style of torch.distributed.tensor.parallel, or a mapping from names to styles"
    given = _arguments.mapping("tensor_parallel", "plan", plan, what)
    return [
        (_arguments.text("tensor_parallel", "a name in plan", name), _style(f"plan[{name!r}]", s))
        for name, s in given.items()
    ]


def _style(where: str, style: Any) -> Any:
    from torch.distributed.tensor.parallel import style as styles

    if not isinstance(style, styles.ParallelStyle):
        raise TypeError(
            f"tensor_parallel: {where} must be a style of torch.distributed.tensor.parallel, such "
            f"as ColwiseParallel(); got {_arguments.shown(style)}"
        )
    if type(style) not in [getattr(styles, name) for name in _SUPPORTED]:
        raise NotImplementedError(
            f"tensor_parallel: {where} is a {type(style).__name__}, whose code is written for "
            f"DTensor; supported are {', '.join(_SUPPORTED)}; mark what it shards by mark_sharding "
            "or shard_module"
        )
    return style


_SUPPORTED = (
    "ColwiseParallel",
    "RowwiseParallel",
    "SequenceParallel",
    "PrepareModuleInput",
    "PrepareModuleOutput",
    "PrepareModuleInputOutput",
)


def _submodules(module: nn.Module, pattern: str) -> Iterator[tuple[str, nn.Module]]:
    """The submodules whose names match, part by part between dots."""
    parts = pattern.split(".") if pattern else []
    for name, child in module.named_modules():
        names = name.split(".") if name else []
        if len(names) == len(parts) and all(map(fnmatch.fnmatchcase, names, parts)):
            yield name, child


def _read(wanted: _Wanted, where: str, style: Any, name: str, module: nn.Module, axis: str) -> None:
    """Adds what one style wants of one module."""
    kind = type(style).__name__
    if kind in ("ColwiseParallel", "RowwiseParallel"):
        prefix = f"{name}." if name else ""
        for parameter, dim in _weight_dims(where, kind, module).items():
            wanted.weights[prefix + parameter] = dim
        output = style.output_layouts[0]
        usual = -1 if kind == "ColwiseParallel" else None  # what propagation gives by itself
        if not (_is_shard(output) and output.dim == usual):
            _add(wanted.outputs, name, Layouts(first=_layout(where, output, axis)))
    elif kind == "SequenceParallel":
        layout = _layout(where, style.sequence_sharding[0], axis)
        _add(wanted.inputs, name, Layouts(first=layout))
        _add(wanted.outputs, name, Layouts(first=layout))
    elif kind == "PrepareModuleInput":
        _add(wanted.inputs, name, _input_layouts(where, style, axis))
    elif kind == "PrepareModuleOutput":
        _add(wanted.outputs, name, _output_layouts(where, style, axis))
    else:
        _add(wanted.inputs, name, _input_layouts(where, style.prepare_module_input, axis))
        _add(wanted.outputs, name, _output_layouts(where, style.prepare_module_output, axis))


def _add(layouts_by_name: dict[str, Layouts], name: str, layouts: Layouts) -> None:
    if layouts:
        layouts_by_name[name] = layouts


def _weight_dims(where: str, kind: str, module: nn.Module) -> dict[str, int]:
    """The sharded dimension of each parameter that the style shards."""
    by_columns = kind == "ColwiseParallel"
    if isinstance(module, nn.Linear):
        dims = {"weight": 0, "bias": 0} if by_columns else {"weight": 1}
    elif isinstance(module, nn.Embedding):
        dims = {"weight": 1 if by_columns else 0}
    else:
        raise NotImplementedError(
            f"{where}: {kind} is for nn.Linear and nn.Embedding, not for "
            f"{type(module).__name__}; mark its parameters by shard_module"
        )
    return {name: dim for name, dim in dims.items() if getattr(module, name) is not None}


def _is_shard(placement: Any) -> bool:
    return bool(placement.is_shard())


def _layout(where: str, placement: Any, axis: str) -> Layout:
    if placement is None or placement.is_replicate():
        return None
    if placement.is_partial():
        raise ValueError(
            f"{where}: the layout {placement} is a partial sum, which cannot be asked for; give "
            "Shard(dim) or Replicate()"
        )
    return Cut(placement.dim, axis)


def _input_layouts(where: str, style: Any, axis: str) -> Layouts:
    positional = [_layout(where, item, axis) for item in style.desired_input_layouts or ()]
    named = style.desired_input_kwarg_layouts.items()
    return Layouts(
        positional=tuple(positional),
        named={name: _layout(where, item, axis) for name, item in named},
    )


def _output_layouts(where: str, style: Any, axis: str) -> Layouts:
    given = style.desired_output_layouts
    return Layouts(positional=tuple(_layout(where, item, axis) for item in given))


def _rules(
    module: nn.Module, dims: Mapping[str, int], axis: str
) -> dict[re.Pattern[str], PartitionSpec]:
    rules = {}
    for name, parameter in module.named_parameters(remove_duplicate=False):
        if name not in dims:
            continue
        entries: list[Any] = [None] * parameter.dim()
        mark = mark_of(parameter) if parameter.device.type == "spmd" else None
        if mark is not None:
            entries = list(mark.spec)
        before = entries[dims[name]]
        if before not in (None, axis):
            raise ValueError(
                f"tensor_parallel: dimension {dims[name]} of parameter {name!r} is sharded over "
                f"{before!r} already; call tensor_parallel before fsdp, which then takes another "
                "dimension"
            )
        entries[dims[name]] = axis
        rules[re.compile(re.escape(name))] = PartitionSpec(*entries)
    return rules


def _warn_of_unmatched(module: nn.Module, patterns: list[str]) -> None:
    names = [name for name, _ in module.named_modules() if name]
    for pattern in patterns:
        warnings.warn(
            f"tensor_parallel: {pattern!r} in plan matched no module; the names start with "
            + ", ".join(map(repr, names[:3])),
            stacklevel=3,
        )
