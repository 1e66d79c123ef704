# SPDX-License-Identifier: Apache-2.0
"""A training step of a model, as `spmd.plan` and `spmd.planning.auto_shard` record it.

    step = _training_step.read("plan", batch, loss, "adamw", "bf16")
    optimizer = step.optimizer_with_state(parameters, gradient_of)
    step.run(model, placed, optimizer)     # loss, backward, update

What the tensors are is the caller's: data on a planning backend, or tensors that only have a shape.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn

from torch_spmd import _arguments
from torch_spmd._compat import pytree

Optimizers = Callable[[list[nn.Parameter]], torch.optim.Optimizer]
Batch = tuple[Any, ...] | dict[str, Any]
OPTIMIZERS: dict[str, Optimizers] = {
    "adamw": functools.partial(torch.optim.AdamW, lr=1e-3),
    "adam": functools.partial(torch.optim.Adam, lr=1e-3),
    "adafactor": torch.optim.Adafactor,
    "sgd": functools.partial(torch.optim.SGD, lr=1e-3),
    "momentum": functools.partial(torch.optim.SGD, lr=1e-3, momentum=0.9),
}
TYPES = {"bf16": torch.bfloat16, "f16": torch.float16, "fp16": torch.float16}


@dataclass(frozen=True)
class TrainingStep:
    """`caller`: the public function, for messages. `batch`: what the model is called with."""

    caller: str
    batch: Batch
    loss: Callable[..., Tensor] | None
    optimizer: Optimizers | None
    autocast: torch.dtype | None

    def placed(self, place: Callable[[Tensor], Tensor]) -> Batch:
        """The batch with each of its tensors as `place` makes it."""
        made: Batch = pytree.tree_map_only(Tensor, place, self.batch)
        return made

    def forward(self, model: nn.Module, batch: Batch) -> Any:
        """What the model, or `loss`, returns for the batch."""
        called: Callable[..., Any] = (
            model if self.loss is None else functools.partial(self.loss, model)
        )
        dtype = self.autocast or torch.bfloat16
        with torch.autocast("spmd", dtype, enabled=self.autocast is not None):
            return called(**batch) if isinstance(batch, dict) else called(*batch)

    def run(
        self, model: nn.Module, batch: Batch, optimizer: torch.optim.Optimizer | None
    ) -> Tensor:
        """The loss of a step: forward, backward, and the update if there is an optimizer."""
        with torch.enable_grad():
            loss = self._scalar_of(self.forward(model, batch))
            loss.backward()
        if optimizer is not None:
            optimizer.step()
        return loss.detach()

    def optimizer_with_state(
        self, parameters: list[nn.Parameter], gradient_of: Callable[[nn.Parameter], Tensor]
    ) -> torch.optim.Optimizer | None:
        """The optimizer after a step on `gradient_of` each parameter, which has made its state:
        what is recorded next is a step in the middle of training. None where nothing is trained."""
        if self.optimizer is None or not parameters:
            return None
        optimizer = self.optimizer(parameters)
        with torch.no_grad():
            for p in parameters:
                p.grad = gradient_of(p)
        optimizer.step()
        optimizer.zero_grad()
        return optimizer

    def _scalar_of(self, made: Any) -> Tensor:
        """The loss among what a model returns."""
        found = made.get("loss", made) if isinstance(made, dict) else getattr(made, "loss", made)
        if isinstance(found, Tensor) and found.numel() == 1 and found.requires_grad:
            return found
        text = tuple(found.shape) if isinstance(found, Tensor) else _arguments.shown(found)
        raise ValueError(
            f"{self.caller}: loss: the model returns {text}, which is no loss, a scalar that its "
            "parameters have made: pass loss=lambda model, *batch: …"
        )


def read(caller: str, batch: Any, loss: Any, optimizer: Any, autocast: Any) -> TrainingStep:
    """The step of the arguments of `caller`.

    Errors: TypeError and ValueError that name the argument.
    """
    return TrainingStep(
        caller,
        _batch(caller, batch),
        _loss(caller, loss),
        _optimizer(caller, optimizer),
        _type(caller, autocast),
    )


def _batch(caller: str, batch: Any) -> Batch:
    if isinstance(batch, Tensor):
        found: Batch = (batch,)
    elif isinstance(batch, Mapping):
        given = _arguments.mapping(caller, "batch", batch, "arguments by name")
        found = {_arguments.text(caller, "a name of batch", n): x for n, x in given.items()}
    elif isinstance(batch, (tuple, list)):
        with _arguments.reading(caller, "batch"):
            found = tuple(batch)
    else:
        raise TypeError(
            f"{caller}: batch must be a tensor, a tuple of positional arguments or a dict of named "
            f"ones; got {_arguments.shown(batch)}"
        )
    with _arguments.reading(caller, "batch"):
        leaves = pytree.tree_leaves(found)
    for x in leaves:
        if isinstance(x, Tensor) and (x.layout != torch.strided or x.is_nested):
            raise ValueError(
                f"{caller}: batch: its tensors must be dense; got {_arguments.shown(x)}"
            )
    return found


def _loss(caller: str, loss: Any) -> Callable[..., Tensor] | None:
    if loss is not None and (isinstance(loss, type) or not callable(loss)):
        raise TypeError(f"{caller}: loss must be a function; got {_arguments.shown(loss)}")
    given: Callable[..., Tensor] | None = loss
    return given


def _optimizer(caller: str, optimizer: Any) -> Optimizers | None:
    if optimizer is None:
        return None
    if isinstance(optimizer, str) or not callable(optimizer):
        name = _arguments.text(caller, "optimizer", optimizer)
        if name not in OPTIMIZERS:
            raise ValueError(
                f"{caller}: optimizer {_arguments.plain(name)} is not known; known are "
                f"{', '.join(OPTIMIZERS)}, or give a function that makes one of a list of "
                "parameters"
            )
        return OPTIMIZERS[name]

    def made(parameters: list[nn.Parameter]) -> torch.optim.Optimizer:
        with _arguments.reading(caller, "optimizer"):
            result = optimizer(parameters)
        if not isinstance(result, torch.optim.Optimizer):
            raise TypeError(f"{caller}: optimizer made no optimizer but {_arguments.shown(result)}")
        return result

    return made


def _type(caller: str, autocast: Any) -> torch.dtype | None:
    if autocast is None or any(autocast is known for known in TYPES.values()):
        given: torch.dtype | None = autocast
        return given
    if isinstance(autocast, torch.dtype):
        name = str(autocast)
    else:
        name = _arguments.text(caller, "autocast", autocast)
    if name not in TYPES:
        raise ValueError(
            f"{caller}: autocast {_arguments.plain(name)} is not known; known are "
            f"{', '.join(TYPES)}"
        )
    return TYPES[name]
