# SPDX-License-Identifier: Apache-2.0
"""A mixture of experts: each token goes through a few of many feed-forward networks."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from torch_spmd import _arguments
from torch_spmd.sharding.global_mesh import mesh_or_global
from torch_spmd.sharding.marks import mark_sharding, reshard
from torch_spmd.sharding.mesh import Mesh, checked_axis
from torch_spmd.sharding.spec import UNCONSTRAINED, PartitionSpec


class Mixed(NamedTuple):
    """What a mixture of experts returns.

    `output` has the shape of the input. `balance_loss` is the experts' number times the sum over
    experts of the fraction of choices that fell on an expert times its mean probability: 1 if all
    are equally loaded. `load` and `dropped` count, by expert, the choices that fell on it and those
    of them that found it full; both are integers [experts].
    """

    output: Tensor
    balance_loss: Tensor
    load: Tensor
    dropped: Tensor


class MoE(nn.Module):
    """A feed-forward layer of experts, of which each token chooses the `top_k` most probable ones.

    Tokens are routed in groups. In each group an expert takes at most as many tokens as its
    capacity; a token that finds it full is dropped, that is, that expert adds nothing to it. First
    choices are served before second ones, and in a group the tokens in their order. Without a
    capacity (`capacity_factor=None`) nothing is dropped.

    `shard` makes it expert parallel: each device has a part of the experts and of the groups, and
    tokens are sent to their experts and back: two all-to-alls forwards and two backwards. The
    results depend on the groups, not on the mesh: on one device, on the CPU, too, they are the
    same.

    Args:
        width: of the tokens.
        hidden: the width inside of an expert.
        experts: their number.
        top_k: how many experts a token chooses.
        capacity_factor: the capacity is this times the number of choices of a group, divided by
            the number of experts and rounded up. None: the size of a group, which is always enough;
            the buffers that are sent are then `experts / (top_k · 1.25)` times as large as with a
            factor of 1.25, however the tokens are distributed.
        groups: into how many groups the tokens are divided, in order. None: 1, or when the layer is
            sharded, the number of devices that share the tokens.
        gated: the activation of one projection is multiplied by a second one, as in SwiGLU.
        activation: an elementwise function.
        normalize: the weights of a token's experts are divided by their sum.
        dtype: of the parameters.

    Shape:
        [..., width] → [..., width]; see `Mixed`. The number of groups divides that of the tokens.

    Errors:
        TypeError, ValueError: an argument of another kind, out of range, or that does not fit.

    Example:
        >>> import torch, torch_spmd as spmd
        >>> mesh = spmd.make_mesh((4,), ("expert",))
        >>> moe = spmd.nn.MoE(16, 32, experts=8).to("spmd").shard(mesh)
        >>> x = spmd.mark_sharding(
        ...     torch.randn(8, 4, 16).to("spmd"), mesh, ("expert", None, None)
        ... )
        >>> y, balance_loss, load, dropped = moe(x)
        >>> y.shape, load.sum().item()
        (torch.Size([8, 4, 16]), 64)
    """

    def __init__(
        self,
        width: int,
        hidden: int,
        experts: int,
        top_k: int = 2,
        *,
        capacity_factor: float | None = 1.25,
        groups: int | None = None,
        gated: bool = False,
        activation: Callable[[Tensor], Tensor] = F.gelu,
        normalize: bool = True,
        dtype: torch.dtype | None = None,
    ) -> None:
        super().__init__()
        integer = _arguments.integer
        width, hidden = integer("MoE", "width", width, 1), integer("MoE", "hidden", hidden, 1)
        self.experts = integer("MoE", "experts", experts, 1)
        self.top_k = integer("MoE", "top_k", top_k, 1, self.experts)
        self.groups = None if groups is None else integer("MoE", "groups", groups, 1)
        if capacity_factor is not None:
            capacity_factor = _arguments.number("MoE", "capacity_factor", capacity_factor)
            if not 0 < capacity_factor < math.inf:
                raise ValueError(
                    f"MoE: capacity_factor must be a positive number, or None for a layer that "
                    f"drops nothing; got {capacity_factor}"
                )
        self.capacity_factor = capacity_factor
        self.normalize = _arguments.boolean("MoE", "normalize", normalize)
        if not callable(activation):
            raise TypeError(
                f"MoE: activation must be a function; got {_arguments.shown(activation)}"
            )
        self.activation = activation
        self.router = nn.Linear(width, self.experts, bias=False, dtype=dtype)
        self.up = _weights(self.experts, width, hidden, dtype)
        self.gate = _weights(self.experts, width, hidden, dtype) if gated else None
        self.down = _weights(self.experts, hidden, width, dtype)
        self._mesh: Mesh | None = None
        self._axis = ""
        self._batch: tuple[str, ...] = ()

    def extra_repr(self) -> str:
        sharded = f", over axis {self._axis!r} of {self._mesh}" if self._mesh is not None else ""
        return (
            f"experts={self.experts}, top_k={self.top_k}, capacity_factor={self.capacity_factor}, "
            f"groups={self.groups}{sharded}"
        )

    def shard(
        self, mesh: Mesh | None = None, axis: str = "expert", batch: Sequence[str] = ()
    ) -> MoE:
        """Shards the experts over an axis of the mesh, and the groups of tokens over `batch` and
        that axis. Returns the layer.

        Args:
            mesh: the mesh; None means the global one.
            axis: the axis over which experts are sharded.
            batch: further axes that shard the tokens, major to `axis`; experts are replicated over
                them.

        Errors:
            TypeError: an argument of another kind.
            ValueError: an axis that the mesh does not have, twice the same one, parameters that are
                not on `spmd` or are marked otherwise, a number of experts or groups that the
                devices do not divide.

        Example:
            >>> import torch, torch_spmd as spmd
            >>> mesh = spmd.make_mesh((2, 4), ("data", "expert"))
            >>> moe = spmd.nn.MoE(16, 32, experts=8).to("spmd").shard(mesh, batch=("data",))
            >>> spmd.sharding_of(moe.up).spec
            P('expert', None, None)
        """
        mesh = mesh_or_global("MoE.shard", mesh)
        axis = checked_axis("MoE.shard", "axis", mesh, axis)
        given = _arguments.texts("MoE.shard", "batch", batch, 64)
        names = [checked_axis("MoE.shard", "batch", mesh, name) for name in given]
        if len({axis, *names}) != 1 + len(names):
            raise ValueError(f"MoE.shard: batch and axis name an axis twice: {names} and {axis!r}")
        sizes = mesh.shape
        devices = math.prod(sizes[name] for name in (axis, *names))
        groups = devices if self.groups is None else self.groups
        for what, count, over in (
            ("experts", self.experts, sizes[axis]),
            ("groups", groups, devices),
        ):
            if count % over != 0:
                raise ValueError(
                    f"MoE.shard: {count} {what} cannot be shared by {over} devices; their number "
                    f"must be a multiple of {over}"
                )
        for weight in (self.up, self.gate, self.down):
            if weight is not None:
                mark_sharding(weight, mesh, (axis, None, None))
        self._mesh, self._axis, self._batch, self.groups = mesh, axis, tuple(names), groups
        return self

    def forward(self, x: Tensor) -> Mixed:
        groups, shape = self.groups or 1, x.shape
        count = math.prod(shape[:-1])
        if x.dim() < 1 or shape[-1] != self.router.in_features or count % groups != 0:
            raise ValueError(
                f"MoE: x must have shape [..., {self.router.in_features}], and its number of "
                f"tokens must be a multiple of {groups} groups; got {tuple(shape)}"
            )
        tokens = self._by_groups(x.reshape(groups, count // groups, shape[-1]))
        probabilities = self.router(tokens).float().softmax(-1)
        routes = self._routes(probabilities)
        sent = self._by_groups(_rows(tokens, routes.source).unflatten(1, (self.experts, -1)))
        sent = self._by_experts(sent.transpose(0, 1))
        result = self._expert(sent.flatten(1, 2)).unflatten(1, (groups, -1))
        result = self._by_experts(result).transpose(0, 1)
        result = self._by_groups(result).flatten(1, 2)
        choices = _rows(result, routes.slot).unflatten(1, (self.top_k, -1))
        output = (choices * routes.weight.to(x.dtype)[..., None]).sum(1)
        share = routes.load.to(torch.float32) / (count * self.top_k)
        balance = self.experts * (share * probabilities.mean((0, 1))).sum()
        return Mixed(output.reshape(shape), balance, routes.load, routes.dropped)

    def _capacity(self, tokens: int) -> int:
        """Of one expert in a group of so many tokens."""
        if self.capacity_factor is None:
            return tokens
        return min(tokens, math.ceil(self.capacity_factor * tokens * self.top_k / self.experts))

    def _routes(self, probabilities: Tensor) -> _Routes:
        tokens = probabilities.shape[1]
        capacity = self._capacity(tokens)
        weight, expert = probabilities.topk(self.top_k, -1)  # [groups, tokens, choices]
        if self.normalize:
            weight = weight / weight.sum(-1, keepdim=True)
        expert = expert.transpose(1, 2).flatten(1)  # first choices first
        chosen = F.one_hot(expert, self.experts)
        place = (chosen.cumsum(1) * chosen).sum(-1) - 1  # among those of the same expert
        kept = place < capacity
        slots = self.experts * capacity
        slot = torch.where(kept, expert * capacity + place, slots)
        token = torch.arange(tokens, device=slot.device).repeat(self.top_k).expand(slot.shape)
        source = torch.full((slot.shape[0], slots + 1), tokens, device=slot.device)
        source = source.scatter(1, slot, token)[:, :slots]
        dropped = (chosen * ~kept[..., None]).sum((0, 1))
        return _Routes(source, slot, weight.transpose(1, 2), chosen.sum((0, 1)), dropped)

    def _expert(self, x: Tensor) -> Tensor:
        """[experts, rows, width] → the same."""
        y = self.activation(x @ self.up)
        if self.gate is not None:
            y = y * (x @ self.gate)
        return y @ self.down

    def _by_groups(self, t: Tensor) -> Tensor:
        return self._sharded(t, (*self._batch, self._axis), UNCONSTRAINED)

    def _by_experts(self, t: Tensor) -> Tensor:
        return self._sharded(t, self._axis, self._batch or None)

    def _sharded(self, t: Tensor, first: Any, second: Any) -> Tensor:
        if self._mesh is None:
            return t
        rest = (UNCONSTRAINED,) * (t.dim() - 2)
        return reshard(t, self._mesh, PartitionSpec(first, second, *rest))


class _Routes(NamedTuple):
    """Where tokens go. A slot is a place of an expert, `experts * capacity` in each group; one
    number more is no slot, and one more than there are tokens is no token."""

    source: Tensor  # [groups, slots]: the token in each slot
    slot: Tensor  # [groups, choices * tokens]
    weight: Tensor  # [groups, choices, tokens]
    load: Tensor  # [experts]
    dropped: Tensor  # [experts]


def _weights(experts: int, rows: int, columns: int, dtype: torch.dtype | None) -> nn.Parameter:
    weights = torch.empty(experts, rows, columns, dtype=dtype)
    return nn.Parameter(nn.init.uniform_(weights, -(rows**-0.5), rows**-0.5))


def _rows(t: Tensor, index: Tensor) -> Tensor:
    """Rows of each group, [groups, rows, width]; the index after the last one gives zeros."""
    t = torch.cat([t, torch.zeros_like(t[:, :1])], 1)
    return t[torch.arange(t.shape[0], device=t.device)[:, None], index]
