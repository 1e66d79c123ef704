# SPDX-License-Identifier: Apache-2.0
"""Recording a training step for spmd.plan, and compiling what was recorded for other machines."""

from __future__ import annotations

import functools
import math
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn
from torch.utils import _pytree

from torch_spmd import _C, _arguments
from torch_spmd.mesh import Mesh, get_global_mesh, set_global_mesh
from torch_spmd.modules import shard_module
from torch_spmd.spec import UNCONSTRAINED, PartitionSpec
from torch_spmd.tensors import mark_sharding

Machine = Mapping[str, Any]
_TYPES = {"bf16": torch.bfloat16, "f16": torch.float16, "fp16": torch.float16}
OPTIMIZERS: dict[str, Callable[..., Any]] = {
    "adamw": torch.optim.AdamW,
    "adam": torch.optim.Adam,
    "adafactor": torch.optim.Adafactor,
    "sgd": torch.optim.SGD,
    "momentum": functools.partial(torch.optim.SGD, lr=1e-3, momentum=0.9),
}


def optimizer_of(given: Any) -> Callable[..., Any] | None:
    """Errors: TypeError, and ValueError for a name that is not known."""
    if isinstance(given, str):
        if given not in OPTIMIZERS:
            known = ", ".join(map(repr, OPTIMIZERS))
            raise ValueError(f"plan: optimizer {given!r} is none of {known}")
        return OPTIMIZERS[given]
    if given is None or callable(given):
        made: Callable[..., Any] | None = given
        return made
    raise TypeError(f"plan: optimizer must be callable; got {_arguments.shown(given)}")


def autocast_type(name: Any) -> torch.dtype | None:
    """Errors: ValueError for another name."""
    if name is None:
        return None
    if _arguments.text("plan", "autocast", name) not in _TYPES:
        raise ValueError(f"plan: autocast must be 'bf16', 'f16' or None; got {name!r}")
    return _TYPES[name]


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


@dataclass
class Step:
    """A training step, or a forward pass where `optimizer` is None."""

    build: Callable[[], Any]
    batch: Any
    loss: Callable[..., Any] | None
    optimizer: Callable[..., Any] | None
    autocast: torch.dtype | None
    kept: Any = None  # what a forward pass made

    def run(self, model: nn.Module, batch: Any, optimizer: Any) -> None:
        with (
            torch.set_grad_enabled(optimizer is not None),
            torch.autocast("spmd", self.autocast, enabled=self.autocast is not None),
        ):
            if self.loss is not None:
                given = batch.values() if isinstance(batch, dict) else batch
                made = self.loss(model, *given)
            else:
                made = model(**batch) if isinstance(batch, dict) else model(*batch)
        if optimizer is None:
            self.kept = made  # what nobody holds is not computed
            return
        scalar_of(made).backward()
        optimizer.step()
        optimizer.zero_grad()


def scalar_of(made: Any) -> Tensor:
    """The loss among what a module returns."""
    if isinstance(made, dict):
        made = made.get("loss", made)
    made = getattr(made, "loss", made)
    if isinstance(made, Tensor) and made.numel() == 1:
        return made
    found = tuple(made.shape) if isinstance(made, Tensor) else _arguments.shown(made)
    raise ValueError(
        f"plan: the module returns {found}, which is no loss: pass loss=lambda module, *batch: …, "
        "a scalar; or optimizer=None to plan the forward pass alone"
    )


class Trace:
    """A recorded step. Use it while the backend that recorded it is in place."""

    def __init__(self, machine: Machine, mesh: Mapping[str, int]) -> None:
        self.machine, self.mesh = machine, dict(mesh)
        self.programs: list[_C.CompiledProgram] = []
        self.parameters = 0
        self.specs: dict[str, PartitionSpec] = {}
        self.names: dict[tuple[int, ...], list[str]] = {}  # of parameters, by shape

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
        step: Step,
        first: tuple[Machine, Mapping[str, int]],
        rules: Mapping[Any, PartitionSpec],
        batch_spec: PartitionSpec | None,
    ) -> None:
        self.step, self.first, self.rules, self.batch_spec = step, first, rules, batch_spec

    # No generator, since the lines that the trace shows would be those of contextlib.
    def __enter__(self) -> Trace:
        machine, sizes = self.first
        self.random_state = _C.get_rng_state()
        self.scope = _C.PlanningScope(backend_of(machine))
        self.mesh_before = get_global_mesh()
        try:
            ids = list(range(math.prod(sizes.values())))
            mesh = Mesh(ids, tuple(sizes.values()), tuple(sizes))
            trace = Trace(machine, sizes)
            set_global_mesh(mesh)
            _record(trace, self.step, mesh, self.rules, self.batch_spec)
        except BaseException:
            self.__exit__()
            raise
        return trace

    def __exit__(self, *_: object) -> None:
        self.step.kept = None
        set_global_mesh(self.mesh_before)
        self.scope.close()
        _C.set_rng_state(self.random_state)


def _record(
    trace: Trace,
    step: Step,
    mesh: Mesh,
    rules: Mapping[Any, PartitionSpec],
    batch_spec: PartitionSpec | None,
) -> None:
    with torch.device("spmd"):
        model = step.build()
    if not isinstance(model, nn.Module):
        raise TypeError(f"plan: build must return an nn.Module; got {_arguments.shown(model)}")
    model = model.to("spmd")
    report = shard_module(model, mesh, rules)
    trace.specs = report.sharded | report.kept
    for name, parameter in model.named_parameters():
        trace.names.setdefault(tuple(parameter.shape), []).append(name)
    trace.parameters = sum(p.numel() for p in model.parameters())
    batch = _on_device(step.batch, mesh, batch_spec)
    optimizer = None
    if step.optimizer is not None:
        optimizer = step.optimizer(model.parameters())
        # A first step without gradients to speak of makes the optimizer's state.
        for p in model.parameters():
            p.grad = torch.zeros_like(p)
        optimizer.step()
        optimizer.zero_grad()
    _C.sync(False)
    step.run(model, batch, optimizer)
    if optimizer is None:
        _C.sync(False)
        last = _C.last_program()
        trace.programs = [last] if last else []
        return
    trace.programs, _, lost = _C.last_step()
    if lost:
        raise RuntimeError(f"plan: {lost} of the step's programs are no longer kept")


def _on_device(batch: Any, mesh: Mesh, batch_spec: PartitionSpec | None) -> Any:
    """The batch as data on the device: a tuple, or a dict."""
    if isinstance(batch, Tensor):
        batch = (batch,)
    if not isinstance(batch, (tuple, list, dict)):
        raise TypeError(
            "plan: batch must be a tensor, a tuple of positional arguments or a dict of named "
            f"ones; got {_arguments.shown(batch)}"
        )

    def moved(x: Any) -> Any:
        if not isinstance(x, Tensor):
            return x
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

    return _pytree.tree_map(moved, batch if isinstance(batch, dict) else tuple(batch))
