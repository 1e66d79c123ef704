# SPDX-License-Identifier: Apache-2.0
"""The pipeline schedule "1f1b": a micro-batch goes backwards while later ones still go forwards.

With S stages and M micro-batches, in tick t stage s runs micro-batch t - s forwards, and then
micro-batch t - 2 (S - 1) + s backwards, as far as there are such. In the last stage these are the
same one, and its loss is between the two. So a tick is

    inputs of all stages -> results -> loss of the last stage's result, and its gradient
    inputs that the stages had when their micro-batch came by, and gradients of their results
        -> the results once more -> gradients of the inputs and of the parameters

where both are one vmap over all stages, as in the other schedules. Between two ticks results go to
the next stage, and gradients of inputs to the one before. In the first S - 1 of M + 2 (S - 1) ticks
nothing goes backwards, in the last S - 1 nothing forwards, and these halves are left out.

Stage s needs the input that it had 2 (S - 1 - s) ticks ago. So the inputs of the last 2 S - 1 ticks
are kept and nothing else. What a stage runs backwards in the bubble is its first or its last
micro-batch, with a gradient of zero.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING, Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.func import functional_call

from torch_spmd import _C, _arguments
from torch_spmd._compat import TorchDispatchMode, has_backward_hooks, pytree

if TYPE_CHECKING:
    from torch_spmd.nn.pipelines import Pipeline


def loss_of(pipe: Pipeline, x: Any, args: Any, targets: Any, scale: float | Tensor) -> Tensor:
    """The mean of the micro-batches' losses, whose gradients are computed along with it."""
    call = _Call(pipe, x, args, targets, scale)
    with torch.no_grad():
        mean = call.run()
        wanted = call.gradients()
    if not wanted:
        return mean
    tensors, gradients = zip(*wanted)
    loss: Tensor = _Loss.apply(mean, pipe.microbatches * scale, *tensors, *gradients)
    return loss


class _Loss(torch.autograd.Function):
    """The mean loss. Its gradients are there already, `times` too large."""

    @staticmethod
    def forward(
        ctx: Any, mean: Tensor, times: float | Tensor, *tensors_and_gradients: Tensor
    ) -> Tensor:
        ctx.save_for_backward(*tensors_and_gradients[len(tensors_and_gradients) // 2 :])
        ctx.times = times
        return mean.clone()

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> Any:
        if torch.is_grad_enabled():
            raise RuntimeError(
                "pipeline: schedule '1f1b' computes gradients together with the loss, and keeps "
                "nothing from which second derivatives could be computed; call backward without "
                "create_graph=True, or use schedule='gpipe'"
            )
        factor = grad / ctx.times
        gradients = [(g * factor).to(g.dtype) for g in ctx.saved_tensors]
        return None, None, *gradients, *(None for _ in gradients)


class _Call:
    """One call of a pipeline. A list of tensors has the leaves of what a layer takes."""

    def __init__(
        self, pipe: Pipeline, x: Any, args: Any, targets: Any, scale: float | Tensor
    ) -> None:
        self.scale = scale
        self.pipe, self.stages, self.count = pipe, pipe.stages, pipe.microbatches
        self.stage = torch.arange(self.stages, device=pipe._device())
        self.x, self.x_form = pytree.tree_flatten(x)
        self.xs = self._divided("x", self.x)
        self.form = self.x_form
        target_leaves, self.target_form = pytree.tree_flatten(() if targets is None else (targets,))
        self.targets = self._divided("targets", target_leaves)
        self.args, self.args_form = pytree.tree_flatten(args)
        self.differentiates = torch.is_grad_enabled()
        # Autocast keeps a leaf's cast, without a graph if gradients are off. So what goes forwards
        # are other tensors than what is differentiated.
        self.layers, self.own_layers = pipe._by_layer(Tensor.detach), pipe._by_layer(_leaf)
        self.own_args = [_leaf(t) if isinstance(t, Tensor) else t for t in self.args]
        self.loss, self.first = _Part(pipe.loss), _Part(pipe.first)
        self.sums = _Sums()
        self.x_gradients: list[list[Tensor]] = [[] for _ in self.x]  # by leaf and micro-batch
        self.entered: dict[int, list[Tensor]] = {}  # by micro-batch, results of `first`
        self.kept: dict[int, list[Tensor]] = {}  # by tick, the inputs of the stages
        self.states: dict[int, Tensor] = {}  # by tick, the random state in which they ran
        self.travels: list[bool] = []  # whether the leaf has a gradient
        self.is_random = False

    def _divided(self, name: str, leaves: list[Any]) -> list[tuple[Tensor, ...]]:
        """The micro-batches of each leaf, [examples, …]."""
        batches = [self.pipe._batch(name, t) for t in leaves]
        return [t.detach().unflatten(0, (-1, self.count)).unbind(1) for t in batches]

    def run(self) -> Tensor:
        """Runs all ticks. Gradients are off outside of what is differentiated."""
        last, losses = self.stages - 1, []
        results: list[Tensor] = []
        gradients: list[Tensor | None] = []
        for tick in range(self.count + 2 * last):
            of_loss: list[Tensor | None] = []
            if tick < self.count + last:
                results = self._forward(tick, results)
                if tick >= last:
                    loss, of_loss = self._loss(tick - last, [t[-1] for t in results])
                    losses.append(loss)
            elif not any(self.travels):
                break
            if tick >= last and any(self.travels):
                gradients = self._backward(tick, gradients, of_loss)
                if tick >= 2 * last:
                    self._leave(tick - 2 * last, gradients)
            self.kept.pop(tick - 2 * last, None)
            self.states.pop(tick - 2 * last, None)
        return torch.stack(losses).mean()

    def gradients(self) -> list[tuple[Tensor, Tensor]]:
        """What has a gradient, and the sum over micro-batches."""
        pairs: list[tuple[Tensor, Tensor]] = []
        for name, parameter in self.pipe.layers.named_parameters():
            by_layer = [self.sums.pop(layer[name]) for layer in self.own_layers]
            if any(g is not None for g in by_layer):
                zero = torch.zeros_like(self.layers[0][name])
                pairs.append(
                    (parameter, torch.stack([zero if g is None else g for g in by_layer], 1))
                )
        for x, by_microbatch in zip(self.x, self.x_gradients):
            if by_microbatch:
                pairs.append((x, torch.stack(by_microbatch, 1).flatten(0, 1)))
        given = [*zip(self.args, self.own_args), *self.loss.tensors(), *self.first.tensors()]
        for original, own in given:
            gradient = self.sums.pop(own) if isinstance(own, Tensor) else None
            if gradient is not None:
                pairs.append((original, gradient))
        return pairs + self.sums.left()

    # --- forward ---

    def _forward(self, tick: int, results: list[Tensor]) -> list[Tensor]:
        """The results of the stages, from those of the tick before."""
        new = self._enter(min(tick, self.count - 1))
        if tick == 0:
            filled = [t.detach().expand(self.stages, *t.shape) for t in new]
        else:
            filled = [
                torch.where(like(self.stage == 0, t), a.detach(), moved(t, 1))
                for a, t in zip(new, results)
            ]
        filled = [self.pipe._sharded(t) for t in filled]
        self.kept[tick], self.states[tick] = filled, _C.get_rng_state()
        if tick == 0 and self.differentiates:
            return self._look(filled, [t.requires_grad for t in self._sources(new)])
        return self._run(self.layers, filled, self.args)

    def _enter(self, microbatch: int) -> list[Tensor]:
        """What the first stage takes; with `first`, with its graph."""
        if self.first.call is None:
            return [t[microbatch] for t in self.xs]
        if microbatch not in self.entered:
            x = pytree.tree_unflatten([t[microbatch] for t in self.xs], self.x_form)
            with torch.set_grad_enabled(self.differentiates):
                self.entered[microbatch], self.form = pytree.tree_flatten(self.first(x))
            for t in self.entered[microbatch]:
                if not isinstance(t, Tensor):
                    raise ValueError(
                        "pipeline: first must return what a layer takes, a tensor or a tree of "
                        f"tensors; got {_arguments.shown(t)}"
                    )
        return self.entered[microbatch]

    def _sources(self, entered: list[Tensor]) -> list[Tensor]:
        """The tensors that tell whether what enters needs a gradient."""
        return self.x if self.first.call is None else entered

    def _look(self, filled: list[Tensor], travels: list[bool]) -> list[Tensor]:
        """The first tick, in which it turns out what has a gradient, and whether the layers draw
        random numbers. If a result has a gradient, so has what the next stage takes."""
        on_host = torch.get_rng_state()
        while True:
            _C.set_rng_state(self.states[0])
            inputs = [t.detach().requires_grad_(needed) for t, needed in zip(filled, travels)]
            with torch.enable_grad():
                results = self._run(self.own_layers, inputs, self.own_args)
            known, travels = travels, [a or t.requires_grad for a, t in zip(travels, results)]
            if travels == known:
                break
        self.travels = travels
        self.is_random = not torch.equal(_C.get_rng_state(), self.states[0])
        if any(travels) and not torch.equal(torch.get_rng_state(), on_host):
            raise RuntimeError(
                "pipeline: schedule '1f1b' runs layers again in the backward pass, where the "
                "random numbers that they draw on the host would be others; draw them on 'spmd'"
            )
        return [t.detach() for t in results]

    def _run(self, layers: Any, filled: list[Tensor], args: list[Any]) -> list[Tensor]:
        """Runs all stages once."""
        return self.pipe._stages(self.form)(
            layers, filled, pytree.tree_unflatten(args, self.args_form)
        )

    def _loss(self, microbatch: int, y: list[Tensor]) -> tuple[Tensor, list[Tensor | None]]:
        """The loss of a micro-batch, and its gradients by what the last stage returns."""
        travels = self.travels or [False] * len(y)
        y = [t.detach().requires_grad_(needed) for t, needed in zip(y, travels)]
        targets = [t[microbatch] for t in self.targets]
        with torch.set_grad_enabled(self.differentiates):
            loss = self.loss(
                pytree.tree_unflatten(y, self.form),
                *pytree.tree_unflatten(targets, self.target_form),
            )
        if not isinstance(loss, Tensor) or loss.dim() != 0 or not loss.is_floating_point():
            raise ValueError(
                "pipeline: loss must return the mean loss of a micro-batch, a floating-point "
                f"tensor of shape (); got {_arguments.shown(loss)}"
            )
        gradients = self._differentiated([loss], [torch.ones_like(loss) * self.scale], y)
        if any(travels) and all(g is None for g in gradients):
            raise ValueError(
                "pipeline: loss must depend on what the layers return, its first argument; its "
                "result has no derivative by it"
            )
        return loss.detach(), gradients

    # --- backward ---

    def _backward(
        self, tick: int, later: list[Tensor | None], of_loss: list[Tensor | None]
    ) -> list[Tensor | None]:
        """The gradients by what the stages took. `later` has those of the tick before, `of_loss`
        those of the last stage's result; the lists are empty where there are none."""
        last = self.stages - 1
        ticks = [
            min(max(tick - 2 * (last - stage), stage), self.count - 1 + stage)
            for stage in range(self.stages)
        ]
        inputs = []
        for leaf, travels in enumerate(self.travels):
            chosen = _chosen([self.kept[t][leaf] for t in ticks], self.stage)
            inputs.append(self.pipe._sharded(chosen).detach().requires_grad_(travels))
        with self._same_numbers(ticks), torch.enable_grad():
            results = self._run(self.own_layers, inputs, self.own_args)
        gradients = []
        for leaf, result in enumerate(results):
            gradient = later[leaf] if later else None
            gradient = None if gradient is None else moved(gradient, -1)
            mine = of_loss[leaf] if of_loss else None
            if mine is not None:
                others = 0.0 if gradient is None else gradient
                gradient = torch.where(like(self.stage == last, result), mine, others)
            gradients.append(
                None if gradient is None else self.pipe._sharded(gradient.to(result.dtype))
            )
        return self._differentiated(results, gradients, inputs)

    def _leave(self, microbatch: int, gradients: list[Tensor | None]) -> None:
        """Takes the gradients by what entered the first stage."""
        entered = self._enter(microbatch)
        firsts = [
            None if g is None or not t.requires_grad else g[0].to(t.dtype)
            for g, t in zip(gradients, self._sources(entered))
        ]
        if self.first.call is not None:
            self._differentiated(entered, firsts, [])
            del self.entered[microbatch]
            return
        for by_microbatch, gradient in zip(self.x_gradients, firsts):
            if gradient is not None:
                by_microbatch.append(gradient)

    def _differentiated(
        self,
        results: Sequence[Tensor],
        gradients: Sequence[Tensor | None],
        inputs: Sequence[Tensor],
    ) -> list[Tensor | None]:
        """The gradients by the inputs. Those by what else the results were computed from are added
        to the sums."""
        pairs = [(t, g) for t, g in zip(results, gradients) if g is not None and t.requires_grad]
        mine = {id(t): place for place, t in enumerate(inputs) if t.requires_grad}
        others = [t for t in _leaves_of([t for t, _ in pairs]) if id(t) not in mine]
        for t in others:
            if has_backward_hooks(t):
                raise ValueError(
                    "pipeline: with schedule '1f1b', a tensor with hooks (register_hook) must be a "
                    "parameter of the layers, loss or first, or an argument, since hooks would run "
                    f"for each micro-batch; what has one is a {_arguments.shown(t)}"
                )
        own = [inputs[place] for place in mine.values()]
        if not pairs or not (own or others):
            return [None for _ in inputs]
        outputs, given = zip(*pairs)
        with torch.autocast(self.stage.device.type, enabled=False):
            # The graph may have parts that all micro-batches share: what the caller computed.
            found = torch.autograd.grad(
                outputs, [*own, *others], given, retain_graph=True, allow_unused=True
            )
        for t, gradient in zip(others, found[len(own) :]):
            self.sums.add(t, gradient)
        placed: list[Tensor | None] = [None for _ in inputs]
        for place, gradient in zip(mine.values(), found):
            placed[place] = gradient
        return placed

    @contextlib.contextmanager
    def _same_numbers(self, ticks: list[int]) -> Iterator[None]:
        """A context in which each stage draws the random numbers that it drew in its tick."""
        if not self.is_random:
            yield
            return
        now = _C.get_rng_state()
        try:
            with _SameNumbers(ticks, {t: self.states[t] for t in ticks}, self.stage):
                yield
        finally:
            _C.set_rng_state(now)


class _Part:
    """What runs before the first stage or behind the last one: a module, which is given leaves in
    the place of its parameters, or a function."""

    def __init__(self, call: Any) -> None:
        self.call = call
        self.parameters = dict(call.named_parameters()) if isinstance(call, nn.Module) else {}
        self.leaves = {name: _leaf(p) for name, p in self.parameters.items()}

    def __call__(self, *args: Any) -> Any:
        if isinstance(self.call, nn.Module):
            return functional_call(self.call, self.leaves, args)
        return self.call(*args)

    def tensors(self) -> list[tuple[Tensor, Tensor]]:
        return [(p, self.leaves[name]) for name, p in self.parameters.items()]


class _Sums:
    """Sums of gradients, by tensor."""

    def __init__(self) -> None:
        self._sums: dict[int, tuple[Tensor, Tensor]] = {}

    def add(self, t: Tensor, gradient: Tensor | None) -> None:
        if gradient is not None:
            before = self._sums.get(id(t))
            self._sums[id(t)] = (t, gradient if before is None else before[1] + gradient)

    def pop(self, t: Tensor) -> Tensor | None:
        return self._sums.pop(id(t), (None, None))[1]

    def left(self) -> list[tuple[Tensor, Tensor]]:
        return list(self._sums.values())


class _SameNumbers(TorchDispatchMode):
    """Random ops on tensors [stages, …] draw, for each stage, what they drew in a certain tick:
    they draw for all of these ticks, of which each stage takes its own."""

    def __init__(self, ticks: list[int], states: dict[int, Tensor], stage: Tensor) -> None:
        super().__init__()
        self.ticks, self.states, self.stage = ticks, states, stage

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        kwargs = kwargs or {}
        if torch.Tag.nondeterministic_seeded not in func.tags:
            return func(*args, **kwargs)
        written = args[0] if func._schema.is_mutable else None
        drawn = {}
        for tick, state in self.states.items():
            _C.set_rng_state(state)
            given = args if written is None else (written.clone(), *args[1:])
            drawn[tick] = func(*given, **kwargs)
            self.states[tick] = _C.get_rng_state()
            if torch.equal(self.states[tick], state):  # dropout that drops nothing
                return drawn[tick] if written is None else written.copy_(drawn[tick])
        form = pytree.tree_structure(drawn[self.ticks[0]])
        leaves = {
            tick: [self._by_stage(func, t) for t in pytree.tree_leaves(results)]
            for tick, results in drawn.items()
        }
        chosen = [
            _chosen(each, self.stage).flatten(0, 1)
            for each in zip(*(leaves[tick] for tick in self.ticks))
        ]
        return pytree.tree_unflatten(chosen, form) if written is None else written.copy_(*chosen)

    def _by_stage(self, func: Any, t: Any) -> Tensor:
        """[stages, …] of a drawn tensor, whose first dimension the stages are a part of."""
        stages = len(self.ticks)
        if not isinstance(t, Tensor) or t.dim() == 0 or t.shape[0] % stages != 0:
            raise RuntimeError(
                f"pipeline: schedule '1f1b' cannot repeat the random numbers of {func} in the "
                "backward pass, since it does not draw them by stage; use schedule='gpipe'"
            )
        return t.unflatten(0, (stages, -1))


def _leaf(t: Tensor) -> Tensor:
    return t.detach().requires_grad_(t.requires_grad)


def like(condition: Tensor, t: Tensor) -> Tensor:
    """A condition on the first dimension with as many dimensions as `t`."""
    return condition.view(-1, *(1,) * (t.dim() - 1))


def moved(t: Tensor, places: int) -> Tensor:
    """[stages, …], each stage's part moved to a later stage, or to an earlier one."""
    return F.pad(t, (*(0, 0) * (t.dim() - 1), places, -places))


def _chosen(by_stage: Sequence[Tensor], stage: Tensor) -> Tensor:
    """[stages, …] of which stage s has its part of `by_stage[s]`."""
    chosen = by_stage[0]
    for number in range(1, len(by_stage)):
        if by_stage[number] is not by_stage[number - 1]:
            chosen = torch.where(like(stage >= number, chosen), by_stage[number], chosen)
    return chosen


def _leaves_of(results: Sequence[Tensor]) -> list[Tensor]:
    """The tensors that a graph of autograd begins with."""
    leaves, seen = [], set()
    nodes = [t.grad_fn for t in results]
    while nodes:
        node = nodes.pop()
        if node is None or node in seen:
            continue
        seen.add(node)
        if type(node).__name__ == "AccumulateGrad":
            leaves.append(node.variable)  # type: ignore[attr-defined]
        nodes.extend(before for before, _ in node.next_functions)
    return leaves
