# SPDX-License-Identifier: Apache-2.0
"""Recording a training step for spmd.plan, and compiling what was recorded for other machines."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Mapping
from typing import Any

import torch
from torch import Tensor, nn

from torch_spmd import _C, _arguments
from torch_spmd.planning.training_step import Batch, TrainingStep
from torch_spmd.sharding.global_mesh import get_global_mesh, set_global_mesh
from torch_spmd.sharding.marks import mark_sharding
from torch_spmd.sharding.mesh import Mesh
from torch_spmd.sharding.modules import shard_module
from torch_spmd.sharding.spec import UNCONSTRAINED, PartitionSpec

Machine = Mapping[str, Any]


def axes_in(spec: PartitionSpec) -> Iterator[str]:
    """The axes that a spec names."""
    for entry in spec:
        if entry is None or entry is UNCONSTRAINED:
            continue
        axes = getattr(entry, "axes", entry)
        yield from (str(axis) for axis in (axes if isinstance(axes, tuple) else (axes,)))


def backend_of(machine: Machine) -> str:
    """The backend that plans on a machine and refuses nothing."""
    kind = "mock_gpu" if machine["name"][0].isdigit() else "mock_tpu"
    return f"{kind}:{machine['name']}:plan:unlimited"


class Trace:
    """A recorded step. Use it while the backend that recorded it is in place."""

    def __init__(self, machine: Machine, mesh: Mapping[str, int]) -> None:
        self.machine, self.mesh = machine, dict(mesh)
        self.programs: list[_C.CompiledProgram] = []
        self.parameters = 0
        self.specs: dict[str, PartitionSpec] = {}
        self.names: dict[tuple[int, ...], list[str]] = {}  # of parameters, by shape
        self.kept: Any = None  # what a forward pass made: what nobody holds is not computed

    def programs_for(self, machine: Machine, mesh: Mapping[str, int]) -> list[_C.CompiledProgram]:
        """The step's programs in the order of their runs, on another mesh and machine. A program
        that was recorded there is taken as it is if it fits: memory then decided nothing."""
        same = machine["name"] == self.machine["name"] and dict(mesh) == self.mesh
        if same and all(p.memory()[0] <= machine["memory_bytes"] for p in self.programs):
            return self.programs
        sizes = list(mesh.values())
        core = _C.Mesh(list(range(math.prod(sizes))), sizes, list(mesh), None)
        made: dict[int, _C.CompiledProgram] = {}
        for program in self.programs:
            if program.number not in made:
                made[program.number] = _C.replan(program, core, machine["name"])
        return [made[program.number] for program in self.programs]


class Traced:
    """Within it, a step that was recorded on a machine, sharded over a mesh on it."""

    def __init__(
        self,
        build: Callable[[], Any],
        step: TrainingStep,
        first: tuple[Machine, Mapping[str, int]],
        rules: Mapping[Any, PartitionSpec],
        batch_spec: PartitionSpec | None,
    ) -> None:
        self.build, self.step, self.first = build, step, first
        self.rules, self.batch_spec = rules, batch_spec
        self.trace: Trace | None = None

    # No generator, since the lines that the trace shows would be those of contextlib.
    def __enter__(self) -> Trace:
        machine, sizes = self.first
        self.random_state = _C.get_rng_state()
        self.scope = _C.PlanningScope(backend_of(machine))
        self.mesh_before = get_global_mesh()
        try:
            ids = list(range(math.prod(sizes.values())))
            mesh = Mesh(ids, tuple(sizes.values()), tuple(sizes))
            self.trace = Trace(machine, sizes)
            set_global_mesh(mesh)
            _record(self.trace, self.build, self.step, mesh, self.rules, self.batch_spec)
        except BaseException:
            self.__exit__()
            raise
        return self.trace

    def __exit__(self, *_: object) -> None:
        if self.trace is not None:
            self.trace.kept = None
        set_global_mesh(self.mesh_before)
        self.scope.close()
        _C.set_rng_state(self.random_state)


def _record(
    trace: Trace,
    build: Callable[[], Any],
    step: TrainingStep,
    mesh: Mesh,
    rules: Mapping[Any, PartitionSpec],
    batch_spec: PartitionSpec | None,
) -> None:
    with torch.device("spmd"):
        model = build()
    if not isinstance(model, nn.Module):
        raise TypeError(f"plan: build must return an nn.Module; got {_arguments.shown(model)}")
    model = model.to("spmd")
    report = shard_module(model, mesh, rules)
    trace.specs = report.sharded | report.kept
    for name, parameter in model.named_parameters():
        trace.names.setdefault(tuple(parameter.shape), []).append(name)
    trace.parameters = sum(p.numel() for p in model.parameters())
    batch = _on_device(step, mesh, batch_spec)
    trained = [p for p in model.parameters() if p.requires_grad]
    # Gradients of zero are created on the device.
    optimizer = step.optimizer_with_state(trained, torch.zeros_like)
    _C.sync(False)
    if step.optimizer is None:
        with torch.no_grad():
            trace.kept = step.forward(model, batch)
        _C.sync(False)
        last = _C.last_program()
        trace.programs = [last] if last else []
        return
    loss = step.run(model, batch, optimizer)  # held until the step's program has run
    if optimizer is not None:
        optimizer.zero_grad()
    del loss
    trace.programs, _, lost = _C.last_step()
    if lost:
        raise RuntimeError(f"plan: {lost} of the step's programs are no longer kept")


def _on_device(step: TrainingStep, mesh: Mesh, batch_spec: PartitionSpec | None) -> Batch:
    """The batch as data on the device."""

    def moved(x: Tensor) -> Tensor:
        if not x.is_meta:
            made = x.detach().to("spmd")
        elif x.is_floating_point() or x.is_complex():
            made = torch.randn(x.shape, dtype=x.dtype, device="spmd")
        else:
            made = torch.zeros(x.shape, dtype=x.dtype, device="spmd")
        if made.dim() > 0:
            spec = batch_spec if batch_spec is not None else PartitionSpec(mesh.axis_names[0])
            mark_sharding(made, mesh, (*spec, *[None] * made.dim())[: made.dim()])
        return made

    return step.placed(moved)
