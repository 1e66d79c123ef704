# SPDX-License-Identifier: Apache-2.0
"""What a training step would take on machines that nobody has yet: memory, seconds, traffic.

    import torch_spmd as spmd
    from torch import nn

    def build():
        return nn.Sequential(nn.Linear(4096, 16384), nn.GELU(), nn.Linear(16384, 4096))

    table = spmd.plan(
        build, torch.empty(8192, 4096), on=["v5e-8", "v5p-16"], mesh={"data": 2, "model": 4},
        specs={"0.weight": ("model", None), "2.weight": (None, "model")},
        loss=lambda model, x: model(x).square().mean(), autocast="bf16")

    print(table)

    on      mesh            fits  HBM      of        …  a step   band               MFU    exposed …
    v5p-16  data=2 model=4  yes   1.4 GiB  95.7 GiB  …
    v5e-8   data=2 model=4  yes   1.4 GiB  15.8 GiB  …
    v5p-16, data=2 model=4: data=2: x 2 line; model=4: y 2 line, z 2 line
    largest at the peak:
    …

The step is recorded once, with shapes only; each candidate is a compilation of what was recorded.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

from torch import Tensor

from torch_spmd import _C, _arguments
from torch_spmd.device.backend import MOST_DEVICES
from torch_spmd.planning import advice, training_step
from torch_spmd.planning import trace as _plan_trace
from torch_spmd.planning.plans import Candidate, PlanTable
from torch_spmd.planning.proposals import best_on
from torch_spmd.planning.training_step import TrainingStep
from torch_spmd.sharding.spec import PartitionSpec, SpecLike, to_spec


def plan(
    build: Callable[[], Any],
    batch: Any,
    *,
    on: str | Sequence[str],
    mesh: Mapping[str, int] | str = "auto",
    specs: Mapping[Any, SpecLike] | str = "auto",
    batch_spec: SpecLike | None = None,
    loss: Callable[..., Tensor] | None = None,
    optimizer: str | Callable[..., Any] | None = "adamw",
    autocast: str | None = None,
) -> PlanTable:
    """What a training step would take on each machine, by a model of it: nothing is computed.

    Args:
        build: makes the module, called once where new tensors are on `spmd`; parameters of any
            size take no memory. Marks inside of it use the global mesh.
        batch: what the module is called with: a tensor, a tuple of positional arguments or a dict
            of named ones. Shapes and types count; integers and booleans that are not on `meta` are
            constants that the module may ask about.
        on: names of machines: TPU slices ("v5e-256", "v5p-128"), GPUs ("8xh100").
        mesh: sizes by axis, the batch's axis first. Where a machine has another number of devices,
            the first axis takes what the others leave. "auto" tries every way to divide the
            devices between the axes that `batch_spec` ("data" without it) and `specs` name.
        specs: rules as for `shard_module`; "auto" takes those that `auto_shard` proposes for each
            machine, and its mesh if that is "auto", too. Where nothing fits, it takes those that
            need least.
        batch_spec: of every tensor of the batch, padded with None; by default its dimension 0 is
            sharded over the first axis.
        loss: `loss(module, *batch)`, or by name where the batch is a dict: the scalar to be
            minimised; by default what the module returns, or its `.loss`.
        optimizer: "adamw", "adam", "adafactor", "sgd" or "momentum", or what makes one from the
            parameters; None plans the forward pass alone.
        autocast: "bf16", "f16" or a dtype.

    Returns a `PlanTable`: whether it fits, and what is missing (`row.missing`), HBM at the peak
    (arguments: parameters, the optimizer's state, the batch; gradients; activations; gathered
    weights), seconds a step with the mean error of the model as a band, MFU (see `debug.timeline`),
    communication that nothing hides, and bytes that each device sends by mesh axis.

    Errors: TypeError and ValueError that name the argument; RuntimeError for a question about data
    (`spmd.planning.assume`). Tensors that `build` made must not be used afterwards.

    Example:
        >>> import torch, torch_spmd as spmd
        >>> table = spmd.plan(
        ...     lambda: torch.nn.Linear(512, 256),
        ...     torch.empty(64, 512, device="meta"),
        ...     on=["v5e-8", "v5p-16"],
        ...     mesh={"data": 8},
        ...     specs={"weight": ("data", None)},
        ...     loss=lambda model, x: model(x).sum(),
        ... )
        >>> [(row.on, row.mesh, row.fits) for row in table]
        [('v5p-16', 'data=8', True), ('v5e-8', 'data=8', True)]
    """
    if not callable(build):
        raise TypeError(f"plan: build must be callable; got {_arguments.shown(build)}")
    names = [on] if isinstance(on, str) else _arguments.texts("plan", "on", on)
    machines = [_machine(name) for name in names]
    if not machines:
        raise ValueError("plan: on names no machine")
    step = training_step.read("plan", batch, loss, optimizer, autocast)
    rules = _rules(specs)
    entries = None if batch_spec is None else to_spec(batch_spec)
    if rules is None:
        return _with_proposed_specs(build, step, machines, mesh, entries)
    wanted = [
        (machine, sizes) for machine in machines for sizes in _meshes(mesh, machine, rules, entries)
    ]
    return _planned(build, step, wanted, rules, entries)


def _planned(
    build: Callable[[], Any],
    step: TrainingStep,
    wanted: Sequence[tuple[dict[str, Any], dict[str, int]]],
    rules: Mapping[Any, PartitionSpec],
    batch_spec: PartitionSpec | None,
) -> PlanTable:
    """All candidates, from one trace."""
    first = _recorded_on(wanted)
    candidates = []
    with _plan_trace.Traced(build, step, first, rules, batch_spec) as trace:
        for machine, sizes in wanted:
            programs = trace.programs_for(machine, sizes)
            candidates.append(advice.candidate(machine, sizes, programs, trace))
        parameters = trace.parameters
    return PlanTable(_ranked(candidates), parameters)


def _with_proposed_specs(
    build: Callable[[], Any],
    step: TrainingStep,
    machines: Sequence[dict[str, Any]],
    mesh: Mapping[str, int] | str,
    batch_spec: PartitionSpec | None,
) -> PlanTable:
    """One candidate for each machine, with the specs that `auto_shard` proposes for it."""
    candidates: list[Candidate] = []
    parameters = 0
    for machine in machines:
        sizes = mesh if isinstance(mesh, str) else next(_meshes(mesh, machine, {}, batch_spec))
        found = best_on(
            build,
            step.batch,
            machine["name"],
            sizes,
            None,
            step.loss,
            step.optimizer,
            step.autocast,
        )
        over = batch_spec if batch_spec is not None else PartitionSpec(tuple(found.batch) or None)
        table = _planned(build, step, [(machine, dict(found.mesh))], dict(found), over)
        candidates += table.candidates
        parameters = table.parameters
    return PlanTable(_ranked(candidates), parameters)


def _ranked(candidates: list[Candidate]) -> list[Candidate]:
    """Those that fit by their seconds, then the others by their memory."""
    return sorted(
        candidates, key=lambda c: (not c.row.fits, c.row.seconds if c.row.fits else c.row.hbm)
    )


def _recorded_on(
    wanted: Sequence[tuple[dict[str, Any], dict[str, int]]],
) -> tuple[dict[str, Any], dict[str, int]]:
    """The machine and mesh on which the step is recorded: the largest candidate's. Marks over an
    axis of size 1 would be lost on the way to other meshes, so none may have that size."""
    if len(wanted) == 1:
        return wanted[0]
    large = [c for c in wanted if min(c[1].values()) > 1]
    if large:
        return max(large, key=lambda candidate: math.prod(candidate[1].values()))
    axes = list(wanted[0][1])
    return _machine("v5p-8192"), dict.fromkeys(axes, 2)


def _machine(name: str) -> dict[str, Any]:
    try:
        return dict(_C.machine(name))
    except (ValueError, RuntimeError) as error:
        raise ValueError(f"plan: on: {str(error)[:400]}") from None


def _rules(specs: Any) -> dict[Any, PartitionSpec] | None:
    if isinstance(specs, str):
        if specs != "auto":
            raise ValueError(f"plan: specs must be rules or 'auto'; got {specs!r}")
        return None
    given = _arguments.mapping(
        "plan", "specs", specs, "a mapping from patterns to specs, or 'auto'"
    )
    return {pattern: to_spec(spec) for pattern, spec in given.items()}


def _axes_of(specs: Sequence[PartitionSpec]) -> list[str]:
    """The axes that specs name, in the order in which they do."""
    axes: list[str] = []
    for spec in specs:
        for axis in _plan_trace.axes_in(spec):
            if axis not in axes:
                axes.append(axis)
    return axes


def _meshes(
    mesh: Any,
    machine: Mapping[str, Any],
    rules: Mapping[Any, PartitionSpec],
    batch_spec: PartitionSpec | None,
) -> Iterator[dict[str, int]]:
    """The meshes to try on a machine.

    Errors: ValueError if none fits its devices.
    """
    devices = int(machine["devices"])
    if isinstance(mesh, str):
        if mesh != "auto":
            raise ValueError(f"plan: mesh must be sizes by axis or 'auto'; got {mesh!r}")
        specs = [*([] if batch_spec is None else [batch_spec]), *rules.values()]
        axes = _axes_of(specs)
        if batch_spec is None:
            axes = ["data", *(axis for axis in axes if axis != "data")]
        for factors in factorisations(devices, len(axes)):
            yield dict(zip(axes, factors, strict=True))
        return
    given = _arguments.mapping("plan", "mesh", mesh, "a mapping from axes to sizes, or 'auto'")
    sizes = {
        _arguments.text("plan", "an axis of mesh", axis): _arguments.integer(
            "plan", f"mesh[{_arguments.plain(axis)}]", size, 1, MOST_DEVICES
        )
        for axis, size in given.items()
    }
    if not sizes:
        raise ValueError("plan: mesh has no axis")
    first, *others = sizes
    rest = math.prod(sizes[axis] for axis in others)
    if devices % math.prod(sizes.values()) and devices % rest:
        raise ValueError(
            f"plan: mesh {sizes} does not fit {machine['name']}, which has {devices} devices: they "
            f"do not divide by {rest}, the product of all axes but the first"
        )
    yield {first: devices // rest, **{axis: sizes[axis] for axis in others}}


def factorisations(number: int, parts: int) -> list[tuple[int, ...]]:
    """Every way to write `number` as a product of so many factors, in order.

    >>> factorisations(4, 2)
    [(1, 4), (2, 2), (4, 1)]
    """
    if parts == 1:
        return [(number,)]
    divisors = [n for n in range(1, number + 1) if number % n == 0]
    return list(
        itertools.chain.from_iterable(
            [(n, *rest) for rest in factorisations(number // n, parts - 1)] for n in divisors
        )
    )
