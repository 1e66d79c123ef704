# SPDX-License-Identifier: Apache-2.0
"""A training step of a model as a graph without data.

The model's parameters and buffers, the optimizer's state and the batch are replaced by tensors that
only have a shape (`_C.shape_only`) while the step is recorded; nothing runs. Equal neighbours in a
ModuleList or Sequential are a `Run`; a step may be recorded with fewer of them.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field

import torch
from torch import Tensor, nn

from torch_spmd import _C, _compat
from torch_spmd.device import optimizer_steps
from torch_spmd.planning.training_step import TrainingStep
from torch_spmd.sharding.marks import mark_of
from torch_spmd.sharding.spec import PartitionSpec


@dataclass(frozen=True)
class Leaf:
    """A parameter: its names in the whole model, and the user's mark if it has one."""

    names: tuple[str, ...]
    shape: tuple[int, ...]
    bytes: int
    mark: PartitionSpec | None


@dataclass(frozen=True)
class Run:
    """The equal neighbours `first`, …, `first + length - 1` of a container."""

    container: nn.Module
    path: str
    first: int
    length: int


@dataclass
class Program:
    """One program on the tape, with the numbers of the inputs of each parameter, by name, and of
    the batch. The optimizer's state and the gradient count as the parameter if they have its
    shape."""

    shapes: list[_C.ShapeOnly] = field(default_factory=list)
    of_parameter: dict[str, list[int]] = field(default_factory=dict)
    of_batch: list[int] = field(default_factory=list)
    results: list[Tensor] = field(default_factory=list)
    trained: list[str] = field(default_factory=list)  # names of parameters
    gradients: dict[str, int] = field(default_factory=dict)  # numbers of results, by parameter

    def add(self, like: Tensor) -> Tensor:
        self.shapes.append(_C.shape_only(like))
        return self.shapes[-1].tensor

    def add_of_batch(self, like: Tensor) -> Tensor:
        self.of_batch.append(len(self.shapes))
        return self.add(like)

    def add_parameter(self, name: str, like: Tensor) -> Tensor:
        self.of_parameter[name] = [len(self.shapes)]
        if like.requires_grad:
            self.trained.append(name)
        return self.add(like)

    def add_gradient(self, name: str, gradient: Tensor) -> None:
        self.gradients[name] = len(self.results)
        self.results.append(gradient)

    def parameters(self) -> list[tuple[int, int]]:
        """The number of each that is trained, and that of its gradient among the results, or -1."""
        return [(self.of_parameter[n][0], self.gradients.get(n, -1)) for n in self.trained]

    def add_of_parameter(self, name: str, like: Tensor) -> Tensor:
        """The optimizer's state of a parameter, or its gradient."""
        if like.shape == self.shapes[self.of_parameter[name][0]].tensor.shape:
            self.of_parameter[name].append(len(self.shapes))
        return self.add(like)


@dataclass
class Recorded:
    """A step. It is one program, or two where the optimizer reads a number, which ends the first:
    the gradients are its results, and inputs of the second (docs/design/0036-auto-shard.md)."""

    programs: list[Program]

    def graphs(self, mesh: _C.Mesh) -> list[_C.TracedGraph]:
        return [_C.trace(p.shapes, p.results, mesh, p.parameters()) for p in self.programs]


def record(
    step: TrainingStep, model: nn.Module, names: Mapping[nn.Parameter, tuple[str, ...]]
) -> Recorded:
    """The step, or its gradients where it has no optimizer. `names` are those of the whole model,
    of which `model` may be a part."""
    first = Program()
    recorded = Recorded([first])
    state = _C.get_rng_state()
    try:
        with (
            _without_data(model, names, first) as parameters,
            optimizer_steps.only_recorded() as numbers,
        ):
            trained = {name: p for name, p in parameters.items() if p.requires_grad}
            optimizer = step.optimizer_with_state(
                list(trained.values()), lambda p: _C.shape_only(p).tensor
            )
            apart = numbers.read > 0
            if optimizer is not None:
                _forget_writes(trained, first)
            if optimizer is not None and not apart:
                _take_state(optimizer, trained, first)
            # Behind a step gradients are dropped (docs/design/0042-end-of-a-step.md).
            in_first = None if apart else optimizer
            first.results.append(step.run(model, step.placed(first.add_of_batch), in_first))
            if in_first is None:
                for name, p in parameters.items():
                    if p.grad is not None:
                        first.add_gradient(name, p.grad)
            if optimizer is not None and apart:
                recorded.programs.append(_update(optimizer, trained))
    except NotImplementedError as error:
        if "meta tensor" not in str(error):
            raise
        raise ValueError(
            "auto_shard: build: a step of the model cannot be recorded without data: it asks "
            "for a value, or an op refuses its arguments"
        ) from error
    finally:
        _C.set_rng_state(state)
    return recorded


def _update(optimizer: torch.optim.Optimizer, trained: Mapping[str, nn.Parameter]) -> Program:
    """What the optimizer does with gradients that are inputs."""
    program = Program()
    for name, p in trained.items():
        p.data = program.add_parameter(name, p)
        if p.grad is not None:
            p.grad = program.add_of_parameter(name, p.grad)
    _take_state(optimizer, trained, program)
    optimizer.step()
    return program


def _forget_writes(trained: Mapping[str, nn.Parameter], program: Program) -> None:
    """What the first step has written to parameters is of no interest."""
    for name, p in trained.items():
        shape = program.shapes[program.of_parameter[name][0]] = _C.shape_only(p)
        p.data = shape.tensor


def _take_state(
    optimizer: torch.optim.Optimizer, trained: Mapping[str, nn.Parameter], program: Program
) -> None:
    """The state that a step before has made becomes an input."""
    for name, p in trained.items():
        for key, value in optimizer.state.get(p, {}).items():
            if isinstance(value, Tensor) and value.device.type == "spmd":
                optimizer.state[p][key] = program.add_of_parameter(name, value)


def leaves_of(model: nn.Module) -> dict[nn.Parameter, Leaf]:
    names: dict[nn.Parameter, list[str]] = {}
    for name, parameter in model.named_parameters(remove_duplicate=False):
        names.setdefault(parameter, []).append(name)
    return {
        p: Leaf(tuple(of_p), tuple(p.shape), p.numel() * p.element_size(), _mark_of(p))
        for p, of_p in names.items()
    }


def _mark_of(tensor: Tensor) -> PartitionSpec | None:
    if tensor.device.type != "spmd":
        return None
    mark = mark_of(tensor)
    return None if mark is None else mark.spec


def runs_of(model: nn.Module) -> list[Run]:
    """Of at least two layers; those inside of a layer of another run are not looked for."""
    runs: list[Run] = []
    _find_runs(model, "", runs)
    return runs


def _find_runs(module: nn.Module, path: str, runs: list[Run]) -> None:
    children = list(_compat.children(module).values())
    inside: set[int] = set()
    if isinstance(module, (nn.ModuleList, nn.Sequential)):
        signatures = [_signature(child) for child in children]
        first = 0
        while first < len(children):
            last = first
            while last + 1 < len(children) and signatures[last + 1] == signatures[first]:
                last += 1
            if last > first and signatures[first] is not None:
                runs.append(Run(module, path, first, last - first + 1))
                inside.update(range(first, last + 1))
            first = last + 1
    for position, (name, child) in enumerate(_compat.children(module).items()):
        if child is not None and position not in inside:
            _find_runs(child, f"{path}{name}.", runs)


def _signature(module: nn.Module | None) -> object:
    """Equal for layers that compute the same; None for one without parameters."""
    if module is None:
        return None
    tensors = [*module.named_parameters(), *module.named_buffers()]
    if not any(isinstance(t, nn.Parameter) for _, t in tensors):
        return None
    return repr(module), tuple(
        (name, tuple(t.shape), t.dtype, t.requires_grad, _mark_of(t)) for name, t in tensors
    )


@contextlib.contextmanager
def shortened(kept: Mapping[Run, int] | None, runs: list[Run]) -> Iterator[None]:
    """Within it, each run has as many layers as `kept` says; None: all."""
    if kept is None:
        yield
        return
    containers = {id(run.container): run.container for run in runs}
    before = {key: dict(_compat.children(container)) for key, container in containers.items()}
    try:
        for key, container in containers.items():
            left_out = {
                position
                for run in runs
                if run.container is container
                for position in range(run.first + kept[run], run.first + run.length)
            }
            children = [c for i, c in enumerate(before[key].values()) if i not in left_out]
            _compat.children(container).clear()
            _compat.children(container).update({str(i): c for i, c in enumerate(children)})
        yield
    finally:
        for key, container in containers.items():
            _compat.children(container).clear()
            _compat.children(container).update(before[key])


@contextlib.contextmanager
def _without_data(
    model: nn.Module, names: Mapping[nn.Parameter, tuple[str, ...]], program: Program
) -> Iterator[dict[str, nn.Parameter]]:
    """Gives the model's parameters by their first name; they and its buffers have no data."""
    replaced: dict[Tensor, Tensor] = {}
    parameters: dict[str, nn.Parameter] = {}
    before = [(m, dict(_compat.parameters(m)), dict(_compat.buffers(m))) for m in model.modules()]
    try:
        for module, own, buffers in before:
            for key, p in own.items():
                if p is None:
                    continue
                if p not in replaced:
                    name = names[p][0]
                    tensor = program.add_parameter(name, p)
                    replaced[p] = parameters[name] = nn.Parameter(tensor, p.requires_grad)
                _compat.parameters(module)[key] = replaced[p]  # type: ignore[assignment]
            for key, buffer in buffers.items():
                if buffer is not None:
                    if buffer not in replaced:
                        replaced[buffer] = program.add(buffer)
                    _compat.buffers(module)[key] = replaced[buffer]
        yield parameters
    finally:
        for module, own, buffers in before:
            _compat.parameters(module).update(own)
            _compat.buffers(module).update(buffers)
