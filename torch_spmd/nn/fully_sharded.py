# SPDX-License-Identifier: Apache-2.0
"""Fully sharded data parallelism: `fsdp` and the hooks behind it."""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor, nn

from torch_spmd import _arguments
from torch_spmd._compat import (
    forward_hooks,
    forward_pre_hooks,
    functorch,
    parameters,
    pytree,
    renew_flat_weights,
)
from torch_spmd.sharding import ops
from torch_spmd.sharding.activations import LayoutHook, constrained, is_markable, remove_hooks
from torch_spmd.sharding.global_mesh import mesh_or_global, only_axis
from torch_spmd.sharding.marks import mark_of, reshard
from torch_spmd.sharding.mesh import Mesh, checked_axis
from torch_spmd.sharding.modules import ShardReport, shard_module_again
from torch_spmd.sharding.spec import PartitionSpec, blocks

if TYPE_CHECKING:
    from torch.distributed.device_mesh import DeviceMesh


def fsdp(
    module: nn.Module,
    mesh: Mesh | DeviceMesh | None = None,
    axis: str | None = None,
    replicate: str | None = None,
    param_dtype: torch.dtype | None = None,
    reduce_dtype: torch.dtype | None = None,
    *,
    batch_dim: int | None = 0,
    materialize: bool = False,
) -> ShardReport:
    """Shards every parameter over `axis` and the batch, too: fully sharded data parallelism (FSDP,
    ZeRO-3), or with `replicate` hybrid sharding (HSDP).

    Weights are gathered where they are used, gradients are reduced to the shards, and the optimizer
    updates shards. Nothing is wrapped: the module keeps its class, names and `state_dict`, and
    `clip_grad_norm_`, gradient accumulation, GradScaler and checkpointing are used as always.

    Each parameter is sharded over its largest dimension that the axis divides; if it divides none,
    unevenly over the largest, and if all are smaller than the axis, not at all. Marks that a
    parameter has already (of tensor parallelism) are kept and combined with this one.

    Args:
        module: on `spmd`, or on `meta` with `materialize`.
        mesh: the mesh, or a DeviceMesh or a slice of one; None means the global one.
        axis: the axis of the mesh that shards parameters and batch. None: the only one of a slice,
            such as `device_mesh["dp"]`; else "data".
        replicate: an axis over which the batch is sharded and parameters are replicated.
        param_dtype: the type of computation. Parameters are cast to it before they are gathered,
            floating-point inputs of the module, too; the parameters themselves and the optimizer's
            state keep their type. None: the parameters' own types.
        reduce_dtype: a type narrower than `param_dtype` in which gradients are reduced, to send
            fewer bytes. A wider one changes nothing, since partial sums of half types are added in
            float32 and rounded once.
        batch_dim: the dimension of the module's inputs that is the batch. Every tensor input whose
            size there is that of the first tensor input is sharded, unless it is marked. None: the
            inputs are left as they are.
        materialize: as in `shard_module`.

    Errors:
        TypeError: an argument of another kind.
        ValueError: an axis that the mesh does not have, or one axis for both; a type that is not a
            floating-point one; a parameter that the axis shards already, together with another
            dimension; as `shard_module`.

    Example:
        >>> import torch, torch_spmd as spmd
        >>> mesh = spmd.make_mesh((8,), ("data",))
        >>> model = torch.nn.Linear(16, 32).to("spmd")
        >>> print(spmd.fsdp(model, mesh))
        weight     P('data', None)
        bias       P('data')
        >>> spmd.local_shards(model.weight)[0].data.shape
        torch.Size([4, 16])
    """
    if not isinstance(module, nn.Module):
        raise TypeError(f"fsdp: module must be an nn.Module; got {_arguments.shown(module)}")
    axis = axis if axis is not None else only_axis(mesh) or "data"
    mesh = mesh_or_global("fsdp", mesh)
    axes = _axes(mesh, axis, replicate)
    param_dtype = _dtype("param_dtype", param_dtype)
    reduce_dtype = _dtype("reduce_dtype", reduce_dtype)
    if batch_dim is not None:
        batch_dim = _arguments.integer("fsdp", "batch_dim", batch_dim, 0, 63)
    rules = _rules(module, mesh, axes[-1])
    report = shard_module_again("fsdp", module, mesh, rules, materialize)
    for child in module.modules():
        _remove_hooks(child)
    if batch_dim is not None:
        hook = _ShardBatch(mesh, axes if len(axes) > 1 else axes[0], batch_dim)
        module.register_forward_pre_hook(hook, with_kwargs=True)
    if param_dtype is not None or reduce_dtype is not None:
        _compute_in(module, mesh, param_dtype, reduce_dtype)
    return report


def _axes(mesh: Mesh, axis: Any, replicate: Any) -> tuple[str, ...]:
    """The axes of the batch, that of the parameters last."""
    axis = checked_axis("fsdp", "axis", mesh, axis)
    if replicate is None:
        return (axis,)
    replicate = checked_axis("fsdp", "replicate", mesh, replicate)
    if replicate == axis:
        raise ValueError(f"fsdp: replicate and axis are both {axis!r}; they are different axes")
    return replicate, axis


def _dtype(name: str, dtype: Any) -> torch.dtype | None:
    if dtype is None:
        return None
    if not isinstance(dtype, torch.dtype):
        raise TypeError(f"fsdp: {name} must be a torch.dtype; got {_arguments.shown(dtype)}")
    if not dtype.is_floating_point:
        raise ValueError(f"fsdp: {name} must be a floating-point type; got {dtype}")
    return dtype


def _rules(module: nn.Module, mesh: Mesh, axis: str) -> dict[re.Pattern[str], PartitionSpec]:
    """The rules for `shard_module`: the marks that there are, combined with the axis."""
    size = mesh.shape[axis]
    rules: dict[re.Pattern[str], PartitionSpec] = {}
    for name, parameter in module.named_parameters():
        spec = PartitionSpec(*[None] * parameter.dim())
        if parameter.device.type == "spmd" and not nn.parameter.is_lazy(parameter):
            mark = mark_of(parameter)
            if mark is not None:
                spec = mark.spec
                if mark.mesh != mesh and any(dim is not None for dim in spec):
                    raise ValueError(
                        f"fsdp: parameter {name!r} is marked over another mesh, "
                        f"{mark.mesh}; give that one, with an axis {axis!r}"
                    )
        combined = _combined(spec, parameter.shape, axis, size)
        if combined != spec:
            rules[re.compile(re.escape(name))] = combined
    return rules


def _combined(spec: PartitionSpec, shape: Sequence[int], axis: str, size: int) -> PartitionSpec:
    """The spec with one open dimension more sharded by the axis, if there is one that pays."""
    if any(
        axis in (entry if isinstance(entry, tuple) else (entry,)) for entry in map(_plain, spec)
    ):
        return spec
    free = [dim for dim, entry in enumerate(spec) if entry is None and shape[dim] >= size]
    if not free:
        return spec
    best = max(free, key=lambda dim: (shape[dim] % size == 0, shape[dim], -dim))
    return PartitionSpec(*spec[:best], axis, *spec[best + 1 :])


def _plain(entry: Any) -> Any:
    return entry.axes if isinstance(entry, blocks) else entry


def _remove_hooks(module: nn.Module) -> None:
    """Removes what an earlier call installed."""
    for hooks in (forward_pre_hooks(module), forward_hooks(module)):
        remove_hooks(hooks, (_ShardBatch, _Cast, _Restore))


class _ShardBatch(LayoutHook):
    """A forward pre-hook that marks the inputs whose dimension `dim` is the batch."""

    def __init__(self, mesh: Mesh, axes: Any, dim: int) -> None:
        self.mesh, self.axes, self.dim = mesh, axes, dim

    def __call__(self, module: nn.Module, args: Any, kwargs: Any) -> tuple[Any, Any]:
        leaves, form = pytree.tree_flatten((args, kwargs))
        size = None
        for position, leaf in enumerate(leaves):
            if not is_markable(leaf) or leaf.dim() <= self.dim:
                continue
            size = leaf.shape[self.dim] if size is None else size
            if leaf.shape[self.dim] == size:
                leaves[position] = self._sharded(leaf)
        args, kwargs = pytree.tree_unflatten(leaves, form)
        return args, kwargs

    def _sharded(self, value: Tensor) -> Any:
        wrapped = functorch.is_functorch_wrapped_tensor(value)
        if not wrapped and not ops.is_traced(value) and mark_of(value) is not None:
            return value
        entries: list[Any] = [None] * value.dim()
        entries[self.dim] = self.axes
        return constrained(value, self.mesh, PartitionSpec(*entries), "fsdp: an input")


# --- computing in another type ---


def _compute_in(
    module: nn.Module,
    mesh: Mesh,
    param_dtype: torch.dtype | None,
    reduce_dtype: torch.dtype | None,
) -> None:
    """Every module gets the hooks, since checkpointing calls inner ones again by themselves."""
    casts = _Casts(mesh, param_dtype, reduce_dtype)
    for child in module.modules():
        child.register_forward_pre_hook(_Cast(casts), with_kwargs=True)
        child.register_forward_hook(_Restore(casts), always_call=True)


def refuse_casts(caller: str, module: nn.Module) -> None:
    """Errors: NotImplementedError if the module computes in another type than its parameters'."""
    hooks = (hook for child in module.modules() for hook in forward_pre_hooks(child).values())
    if any(isinstance(hook, _Cast) for hook in hooks):
        raise NotImplementedError(
            f"{caller}: fsdp(param_dtype=…, reduce_dtype=…) casts parameters by hooks, which this "
            "module has and a script cannot have; call fsdp without these types, and cast the "
            "module itself: module.to(dtype)"
        )


class _Casts:
    """Casts the parameters of the outermost module that is being called, and of all modules in it,
    since a module may read the parameters of another one without calling it."""

    def __init__(
        self, mesh: Mesh, param_dtype: torch.dtype | None, reduce_dtype: torch.dtype | None
    ) -> None:
        self.mesh, self.param_dtype, self.reduce_dtype = mesh, param_dtype, reduce_dtype
        self.depth = 0
        self.replaced: list[tuple[nn.Module, str, nn.Parameter]] = []

    def __deepcopy__(self, memo: dict[int, Any]) -> _Casts:
        copied = memo[id(self)] = _Casts(self.mesh, self.param_dtype, self.reduce_dtype)
        return copied

    def __getstate__(self) -> dict[str, Any]:
        return {**vars(self), "depth": 0, "replaced": []}

    def enter(self, module: nn.Module) -> None:
        self.depth += 1
        if self.depth > 1:
            return
        casts: dict[nn.Parameter, Tensor] = {}
        for child in module.modules():
            for name, parameter in parameters(child).items():
                if parameter is None or not parameter.is_floating_point():
                    continue
                if parameter not in casts:
                    casts[parameter] = self._cast(parameter)
                self.replaced.append((child, name, parameter))
                parameters(child)[name] = casts[parameter]  # type: ignore[assignment]
            _refresh_flat_weights(child)

    def leave(self) -> None:
        self.depth -= 1
        if self.depth > 0:
            return
        replaced, self.replaced = self.replaced, []
        for child, name, parameter in replaced:
            parameters(child)[name] = parameter
        for child in {id(child): child for child, _, _ in replaced}.values():
            _refresh_flat_weights(child)

    def _cast(self, parameter: nn.Parameter) -> Tensor:
        dtype, reduce_dtype = self.param_dtype or parameter.dtype, self.reduce_dtype
        narrower = reduce_dtype is not None and reduce_dtype.itemsize < dtype.itemsize
        if narrower and mark_of(parameter) is not None:
            cast: Tensor = _ReducedIn.apply(parameter, dtype, reduce_dtype)
            return cast
        return parameter.to(dtype)


class _Cast:
    """A forward pre-hook. It casts the inputs of the outermost module, too."""

    def __init__(self, casts: _Casts) -> None:
        self.casts = casts

    def __call__(self, module: nn.Module, args: Any, kwargs: Any) -> tuple[Any, Any]:
        self.casts.enter(module)
        dtype = self.casts.param_dtype
        if self.casts.depth > 1 or dtype is None:
            return args, kwargs

        def cast(value: Tensor) -> Tensor:
            on_device = value.device.type == "spmd" and value.is_floating_point()
            return value.to(dtype) if on_device else value

        args, kwargs = pytree.tree_map_only(Tensor, cast, (args, kwargs))
        return args, kwargs


class _Restore:
    """A forward hook that is called even if the module's forward raises."""

    def __init__(self, casts: _Casts) -> None:
        self.casts = casts

    def __call__(self, module: nn.Module, args: Any, result: Any) -> None:
        self.casts.leave()


class _ReducedIn(torch.autograd.Function):
    """A cast whose gradient is reduced, to the parameter's shards, in a narrower type."""

    generate_vmap_rule = True

    @staticmethod
    def forward(parameter: Tensor, dtype: torch.dtype, reduce_dtype: torch.dtype) -> Tensor:
        return parameter.to(dtype)

    @staticmethod
    def setup_context(ctx: Any, inputs: Any, output: Any) -> None:
        parameter, _, ctx.reduce_dtype = inputs
        ctx.dtype, ctx.mark = parameter.dtype, mark_of(parameter)

    @staticmethod
    def backward(ctx: Any, *grads: Any) -> Any:
        reduced = reshard(grads[0].to(ctx.reduce_dtype), ctx.mark.mesh, ctx.mark.spec)
        return reduced.to(ctx.dtype), None, None


def _refresh_flat_weights(module: nn.Module) -> None:
    """Recurrent modules keep a list of their parameters besides."""
    if isinstance(module, nn.RNNBase):
        renew_flat_weights(module)
