# SPDX-License-Identifier: Apache-2.0
"""Pipelines: equal layers that are divided among devices, through which micro-batches pass.

All stages run the same ops at the same time, each on another micro-batch: their parameters are
stacked, their inputs, too, and the layer runs under vmap over the stack, which is sharded. Between
two ticks the inputs move on by one stage: a shift along the stack's dimension.
"""

from __future__ import annotations

import copy
from collections.abc import Callable, Iterable, Sequence
from typing import Any

import torch
from torch import Tensor, nn
from torch.func import functional_call
from torch.utils.checkpoint import checkpoint as checkpointed

from torch_spmd import _arguments, _compat
from torch_spmd._compat import pytree
from torch_spmd.nn.one_f_one_b import like, loss_of, moved
from torch_spmd.sharding.global_mesh import mesh_or_global
from torch_spmd.sharding.marks import mark_of, mark_sharding, reshard
from torch_spmd.sharding.mesh import Mesh, checked_axis
from torch_spmd.sharding.spec import UNCONSTRAINED, PartitionSpec

_SCHEDULES = ("gpipe", "circular", "1f1b")


def pipeline(
    layers: Iterable[nn.Module],
    mesh: Mesh | None = None,
    axis: str = "stage",
    *,
    microbatches: int,
    schedule: str = "gpipe",
    checkpoint: bool = False,
    loss: Callable[..., Any] | None = None,
    first: Callable[..., Any] | None = None,
) -> Pipeline:
    """Divides equal layers among the devices along an axis. The result is a module that does what
    the layers do one after the other.

    The batch is divided into micro-batches; with S stages and M micro-batches there are M + S - 1
    ticks, in each of which every stage runs its layers once, and of which S - 1 are lost for each
    stage: a fraction (S - 1) / (M + S - 1), the bubble. Between two ticks each stage sends one
    micro-batch to the next one. What comes before and after the equal layers (embeddings, the head,
    the loss) stays outside, where all devices compute it.

    With schedule "1f1b" the loss is a part of the pipeline: `blocks(x, targets=y)` is the mean of
    the micro-batches' losses. A micro-batch goes backwards as soon as it has left the last stage,
    and what is kept are the inputs of stages in 2 S - 1 ticks, for any number of micro-batches.

    Args:
        layers: modules on `spmd` with the same structure, whose forward takes a tensor, or a tree
            of tensors, and returns the same kind with the same shapes. Other things that differ
            between them than the values of parameters and buffers are lost. The modules themselves
            are not changed; the pipeline has a copy of their parameters, stacked:
            [stages, layers per stage, …]. Marks of the parameters are kept.
        mesh: the mesh; None means the global one.
        axis: the axis whose devices are the stages. Their number divides that of the layers.
        microbatches: their number; it divides the batch. Micro-batch m has the examples m,
            m + microbatches, …, so that a batch that is sharded over another axis stays so.
        schedule: "gpipe": a stage has layers that follow each other. "circular": layer l belongs to
            stage l modulo S, and a micro-batch passes all stages R = layers / S times; there are
            R · M + S - 1 ticks, shorter ones, of which S - 1 are lost. There must be at least as
            many micro-batches as stages. "1f1b": as "gpipe", but gradients are computed along with
            the loss, in M + 2 (S - 1) steps, of which the first S - 1 only run forwards and the
            last S - 1 only backwards, so that the bubble is the same. The layers run again in the
            backward pass, with the same random numbers.
        checkpoint: keep only the inputs of each stage and tick for the backward pass, and run the
            layers again in it. "1f1b" always does.
        loss: for "1f1b", a module or function: given what the layers return for a micro-batch, and
            the micro-batch's targets if there are any, it returns the mean loss of the examples, a
            tensor of shape (). The head belongs to it. All tensors that it reads get gradients, the
            parameters of a module and others.
        first: for "1f1b", a module or function that computes what the first stage takes from a
            micro-batch of x, such as the embedding. It is not needed, since x can be computed
            outside, but then x and its gradient are there for the whole batch.

    Errors:
        TypeError: an argument of another kind.
        ValueError: no layers, layers of different structure, numbers that do not divide each other,
            a schedule that does not exist or is not possible, parameters on another device, "1f1b"
            without a loss, or another schedule with one.

    Example:
        >>> import torch, torch_spmd as spmd
        >>> from torch import nn
        >>> mesh = spmd.make_mesh((4,), ("stage",))
        >>> layers = [
        ...     nn.Sequential(nn.Linear(8, 8), nn.Tanh()).to("spmd") for _ in range(8)
        ... ]
        >>> blocks = spmd.nn.pipeline(layers, mesh, microbatches=6)
        >>> x = torch.randn(12, 8, device="spmd")
        >>> expected = nn.Sequential(*layers)(x)
        >>> torch.allclose(blocks(x).cpu(), expected.cpu(), atol=1e-6)
        True
        >>> blocks.ticks, blocks.bubble
        (9, 0.3333333333333333)
        >>> head, targets = nn.Linear(8, 3).to("spmd"), torch.arange(12, device="spmd") % 3
        >>> def loss(y, targets):
        ...     return nn.functional.cross_entropy(head(y), targets)
        >>> training = spmd.nn.pipeline(
        ...     layers, mesh, microbatches=6, schedule="1f1b", loss=loss
        ... )
        >>> mean = training(x, targets=targets)
        >>> torch.allclose(mean.cpu(), loss(expected, targets).cpu(), atol=1e-6)
        True
        >>> mean.backward()
        >>> head.weight.grad.shape, training.bubble
        (torch.Size([3, 8]), 0.3333333333333333)
    """
    mesh = mesh_or_global("pipeline", mesh)
    axis = checked_axis("pipeline", "axis", mesh, axis)
    modules = _arguments.items("pipeline", "layers", layers, "modules")
    count = _arguments.integer("pipeline", "microbatches", microbatches, 1)
    schedule = _arguments.text("pipeline", "schedule", schedule)
    again = _arguments.boolean("pipeline", "checkpoint", checkpoint)
    stages = mesh.shape[axis]
    if schedule not in _SCHEDULES:
        raise ValueError(
            "pipeline: schedule must be 'gpipe', 'circular' or '1f1b'; got "
            f"{_arguments.shown(schedule)}"
        )
    _check_parts(schedule, loss, first)
    if not modules or len(modules) % stages != 0:
        raise ValueError(
            f"pipeline: {len(modules)} layers cannot be divided among the {stages} stages along "
            f"axis {axis!r}; keep those outside that are too many"
        )
    if schedule == "circular" and count < stages:
        raise ValueError(
            f"pipeline: schedule 'circular' needs at least as many micro-batches as the {stages} "
            f"stages along axis {axis!r}, since a micro-batch comes back to the first stage after "
            f"so many ticks; got {count}"
        )
    stacked = _stacked(modules, mesh, axis, schedule)
    return Pipeline(stacked, mesh, axis, count, schedule, again, loss, first)


def _check_parts(schedule: str, loss: Any, first: Any) -> None:
    for name, part in (("loss", loss), ("first", first)):
        if part is not None and not callable(part):
            raise TypeError(
                f"pipeline: {name} must be a module or a function; got {_arguments.shown(part)}"
            )
        if part is not None and schedule != "1f1b":
            raise ValueError(
                f"pipeline: {name} is for schedule '1f1b', which computes it by micro-batch; with "
                f"{schedule!r} call it outside, on the whole batch"
            )
    if schedule == "1f1b" and loss is None:
        raise ValueError(
            "pipeline: schedule '1f1b' runs micro-batches backwards while later ones run forwards, "
            "so the loss is a part of it; give it: pipeline(…, schedule='1f1b', loss=module)"
        )


class Pipeline(nn.Module):
    """What `pipeline` returns. `layers` is one layer whose parameters are stacked, `ticks` how
    often each stage runs forwards, and as often backwards, and `bubble` the fraction of ticks in
    which a stage has nothing to do."""

    def __init__(
        self,
        layers: nn.Module,
        mesh: Mesh,
        axis: str,
        count: int,
        schedule: str,
        again: bool,
        loss: Callable[..., Any] | None,
        first: Callable[..., Any] | None,
    ) -> None:
        super().__init__()
        self.layers = layers
        self.mesh, self.axis, self.microbatches = mesh, axis, count
        self.schedule, self.checkpoint = schedule, again
        self.loss, self.first = loss, first
        self.stages = mesh.shape[axis]
        tensors = [*layers.parameters(), *layers.buffers()]
        self.layers_per_stage = tensors[0].shape[1]
        self.passes = self.layers_per_stage if schedule == "circular" else 1

    @property
    def ticks(self) -> int:
        return self.passes * self.microbatches + self.stages - 1

    @property
    def bubble(self) -> float:
        return (self.stages - 1) / self.ticks

    def extra_repr(self) -> str:
        return (
            f"stages={self.stages}, layers_per_stage={self.layers_per_stage}, "
            f"microbatches={self.microbatches}, schedule={self.schedule!r}, "
            f"ticks={self.ticks}, bubble={self.bubble:.3f}"
        )

    def forward(self, x: Any, *args: Any, targets: Any = None, scale: float | Tensor = 1.0) -> Any:
        """x: a tensor or a tree of tensors [batch, …]. Further arguments are given to each layer as
        they are: the same for all examples. The result is that of the last layer.

        With schedule "1f1b" it is the mean loss, and `targets`, a tensor or a tree of tensors
        [batch, …], are given to the loss by micro-batch. `scale` is what losses are multiplied by
        where gradients are computed, and is divided out of them: that of a GradScaler, for float16.

        Errors: ValueError if the number of micro-batches does not divide a batch, for targets
        without a loss, for a loss that is no scalar; RuntimeError for second derivatives of "1f1b".
        """
        if self.loss is not None:
            return loss_of(self, x, args, targets, scale)
        if targets is not None:
            raise ValueError(
                "pipeline: targets are for the loss of schedule '1f1b'; with "
                f"{self.schedule!r} the loss is computed outside"
            )
        return self.results(x, *args)

    def results(self, x: Any, *args: Any) -> Any:
        """What the last layer returns for [batch, …], with schedule "1f1b", too: for evaluation and
        generation."""
        if self.first is not None:
            x = self.first(x)
        leaves, form = pytree.tree_flatten(x)
        inputs = [self._divided(leaf) for leaf in leaves]
        filled = [microbatches[0] for microbatches in inputs]
        layers, results = self._by_layer(), []
        came_back: dict[int, list[Tensor]] = {}  # by tick, what the last stage sends to the first
        for tick in range(self.ticks):
            if tick > 0:
                filled = self._moved_on(tick, inputs, filled, came_back)
            filled = [self._sharded(t) for t in filled]
            filled = self._run(self._layers_at(tick, layers), filled, form, args)
            if tick >= self.ticks - self.microbatches:
                results.append(filled)
        merged = [torch.stack(each)[:, -1] for each in zip(*results)]
        return pytree.tree_unflatten([t.transpose(0, 1).flatten(0, 1) for t in merged], form)

    def _divided(self, t: Any) -> tuple[Tensor, ...]:
        """The micro-batches of [batch, …], each [stages, examples, …]. Every stage has them all, so
        that their gradients are added up over the stages at once."""
        t = self._batch("x", t).unflatten(0, (-1, self.microbatches)).transpose(0, 1)
        return self._sharded(t.expand(self.stages, *t.shape)).unbind(1)

    def _batch(self, name: str, t: Any) -> Tensor:
        if not isinstance(t, Tensor) or t.dim() < 1 or t.shape[0] % self.microbatches != 0:
            raise ValueError(
                f"pipeline: {name} must be a tensor, or a tree of tensors, whose first dimension "
                f"is the batch, a multiple of {self.microbatches} micro-batches; got "
                f"{_arguments.shown(t)}"
            )
        return t

    def _sharded(self, t: Tensor) -> Tensor:
        return reshard(t, self.mesh, PartitionSpec(self.axis, *(UNCONSTRAINED,) * (t.dim() - 1)))

    def _moved_on(
        self,
        tick: int,
        inputs: list[tuple[Tensor, ...]],
        filled: list[Tensor],
        came_back: dict[int, list[Tensor]],
    ) -> list[Tensor]:
        """The stages' inputs, [stages, examples, …], from their results of the tick before."""
        new = [each[tick] if tick < self.microbatches else each[-1].detach() for each in inputs]
        if self.passes == 1 or tick < self.stages:
            filled = [moved(t, 1) for t in filled]
        else:
            filled = came_back[tick] = [torch.roll(t, 1, 0) for t in filled]
            if tick >= self.microbatches:
                new = came_back.pop(tick - self.microbatches + self.stages)
        stage = torch.arange(self.stages, device=filled[0].device)
        return [torch.where(like(stage == 0, b), a, b) for a, b in zip(new, filled)]

    def _by_layer(
        self, changed: Callable[[Tensor], Tensor] = lambda t: t
    ) -> list[dict[str, Tensor]]:
        """The parameters and buffers, [stages, …], of each of the layers of a stage."""
        named = dict(self.layers.named_parameters()) | dict(self.layers.named_buffers())
        apart = {name: [changed(layer) for layer in t.unbind(1)] for name, t in named.items()}
        return [{n: t[i] for n, t in apart.items()} for i in range(self.layers_per_stage)]

    def _layers_at(self, tick: int, layers: list[dict[str, Tensor]]) -> list[dict[str, Tensor]]:
        """The layers that the stages run in a tick."""
        if self.passes == 1:
            return layers
        passes = [
            min(max((tick - stage) // self.microbatches, 0), self.passes - 1)
            for stage in range(self.stages)
        ]
        chosen = layers[passes[0]]
        if passes[-1] != passes[0]:  # the last stages are still in the pass before
            first = torch.arange(self.stages, device=self._device()) < passes.count(passes[0])
            before = layers[passes[-1]]
            chosen = {n: torch.where(like(first, t), t, before[n]) for n, t in chosen.items()}
        return [chosen]

    def _device(self) -> torch.device:
        return next(iter([*self.layers.parameters(), *self.layers.buffers()])).device

    def _run(
        self, layers: list[dict[str, Tensor]], filled: list[Tensor], form: Any, args: Any
    ) -> list[Tensor]:
        """Runs all stages once."""
        run = self._stages(form)
        if not self.checkpoint:
            return run(layers, filled, args)
        return checkpointed(run, layers, filled, args, use_reentrant=False)

    def _stages(self, form: Any) -> Callable[..., list[Tensor]]:
        """A function that runs all stages once: of the layers, the leaves of the stages' inputs,
        which are a tree of this form, and further arguments."""

        def stage(layers: list[dict[str, Tensor]], leaves: list[Tensor], args: Any) -> list[Tensor]:
            x = pytree.tree_unflatten(leaves, form)
            for layer in layers:
                x = functional_call(self.layers, layer, (x, *args))
            results, new_form = pytree.tree_flatten(x)
            shapes = [t.shape if isinstance(t, Tensor) else None for t in results]
            if new_form != form or shapes != [t.shape for t in leaves]:
                raise ValueError(
                    "pipeline: a layer must return what it takes, tensors of shapes "
                    f"{[tuple(t.shape) for t in leaves]}; got {_arguments.shown(x)}"
                )
            return results

        return torch.vmap(stage, in_dims=(0, 0, None), randomness="different")


def _stacked(modules: Sequence[Any], mesh: Mesh, axis: str, schedule: str) -> nn.Module:
    """One layer whose parameters and buffers are those of all, [stages, layers per stage, …],
    sharded over the stages."""
    named = [_tensors(module, number) for number, module in enumerate(modules)]
    for number, tensors in enumerate(named):
        _check_alike(named[0], tensors, number, type(modules[0]), type(modules[number]))
    if not named[0]:
        raise ValueError("pipeline: layers have no parameters, so there is nothing to divide")
    stages = mesh.shape[axis]
    layer = copy.deepcopy(modules[0])
    for name, first in named[0].items():
        mark = mark_of(first)
        spec = tuple(mark.spec) if mark is not None else (None,) * first.dim()
        with torch.no_grad():
            whole = torch.stack([tensors[name] for tensors in named])
            if schedule == "circular":  # layer l is pass l // stages of stage l % stages
                whole = whole.unflatten(0, (-1, stages)).transpose(0, 1)
            else:
                whole = whole.unflatten(0, (stages, -1))
            whole = whole.clone(memory_format=torch.contiguous_format)  # not a view of the stack
        owner, _, attribute = name.rpartition(".")
        module = layer.get_submodule(owner)
        if isinstance(first, nn.Parameter):
            whole = nn.Parameter(whole, first.requires_grad)
            _compat.parameters(module)[attribute] = whole
        else:
            _compat.buffers(module)[attribute] = whole
        mark_sharding(whole, mesh, (axis, None, *spec))
    return layer


def _tensors(module: Any, number: int) -> dict[str, Tensor]:
    if not isinstance(module, nn.Module):
        raise TypeError(
            f"pipeline: layers must be modules; layer {number} is {_arguments.shown(module)}"
        )
    for name, child in module.named_modules():
        if getattr(child, "track_running_stats", False):
            raise ValueError(
                f"pipeline: layer {number} has running statistics in {name or 'itself'!r}, which "
                "the ticks of the bubble would count, too; use a normalization without them"
            )
    tensors = dict(module.named_parameters()) | dict(module.named_buffers())
    for name, t in tensors.items():
        _arguments.tensor(f"pipeline: layer {number}", t, name)
    return tensors


def _check_alike(
    first: dict[str, Tensor], other: dict[str, Tensor], number: int, kind: type, its_kind: type
) -> None:
    if kind is not its_kind:
        raise ValueError(
            f"pipeline: layers must be equal but for their values; layer 0 is a {kind.__name__}, "
            f"layer {number} a {its_kind.__name__}"
        )
    for name in first.keys() | other.keys():
        forms = [
            f"{t.dtype} {tuple(t.shape)}" if t is not None else "missing"
            for t in (first.get(name), other.get(name))
        ]
        if forms[0] != forms[1]:
            raise ValueError(
                f"pipeline: layers must be equal but for their values; {name} is {forms[0]} in "
                f"layer 0 and {forms[1]} in layer {number}"
            )
