# SPDX-License-Identifier: Apache-2.0
"""`auto_policy`: the specs of a module's parameters and inputs are those that `planning.auto_shard`
proposes (design 0036), found when the module is called for the first time."""

from __future__ import annotations

import warnings
from typing import Any

import torch
from torch import Tensor, nn

import torch_spmd as spmd
from torch_spmd._compat import pytree
from torch_spmd.torch_xla import _auto_pending, _counts


def shard_when_called(module: nn.Module, mesh: spmd.Mesh | None) -> None:
    """Proposes specs at the first call, marks the parameters, and marks the inputs of every call.
    `mesh`: None for that of XLA_AUTO_SPMD_MESH, else for one that is chosen."""

    def first(module: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
        handle.remove()  # proposing calls the module
        proposal = _proposal(module, args, kwargs, mesh)
        if proposal is None:
            return
        made = proposal.make_mesh()
        spmd.shard_module(module, made, proposal)

        def each(module: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
            _mark_inputs(proposal, made, args, kwargs)

        module.register_forward_pre_hook(each, with_kwargs=True)
        each(module, args, kwargs)

    handle = module.register_forward_pre_hook(first, with_kwargs=True)


def _proposal(
    module: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any], mesh: spmd.Mesh | None
) -> Any:
    """None, with a warning, if nothing can be proposed: everything is replicated then."""
    leaves, form = pytree.tree_flatten((args, kwargs))
    places = [i for i, leaf in enumerate(leaves) if isinstance(leaf, Tensor)]

    def loss(module: nn.Module, *tensors: Tensor) -> Tensor:
        values = list(leaves)
        for place, tensor in zip(places, tensors, strict=True):
            values[place] = tensor
        its_args, its_kwargs = pytree.tree_unflatten(values, form)
        results = pytree.tree_leaves(module(*its_args, **its_kwargs))
        means = [r.float().mean() for r in results if isinstance(r, Tensor) and r.requires_grad]
        if not means:
            raise ValueError("no result of it needs a gradient")
        return torch.stack(means).sum()

    spmd.sync()  # the step is recorded behind what is pending, and may not run it
    try:
        found = spmd.planning.auto_shard(
            module,
            batch=tuple(leaves[place] for place in places),
            on=_auto_pending.machine(),
            mesh=_auto_pending.mesh_of_environment() if mesh is None else mesh,
            loss=loss,
        )
    except (RuntimeError, TypeError, ValueError) as error:
        warnings.warn(
            f"auto_policy: {type(module).__name__} stays replicated, since no sharding of it could "
            f"be proposed: {error}",
            stacklevel=4,
        )
        return None
    _counts.count("CompileWithAutoSharding")
    return found


def _mark_inputs(
    proposal: Any, mesh: spmd.Mesh, args: tuple[Any, ...], kwargs: dict[str, Any]
) -> None:
    if not proposal.batch:
        return
    shards = 1
    for axis in proposal.batch:
        shards *= proposal.mesh[axis]
    for leaf in pytree.tree_leaves((args, kwargs)):
        of_device = isinstance(leaf, Tensor) and leaf.device.type == "spmd" and leaf.dim() > 0
        if of_device and leaf.shape[0] % shards == 0 and not spmd.sharding_of(leaf).is_committed:
            spmd.mark_sharding(leaf, mesh, proposal.batch_spec(leaf))
