# SPDX-License-Identifier: Apache-2.0
"""Marks: `mark_sharding` and what is beside it."""

from __future__ import annotations

import ast
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor, nn

import torch_spmd as spmd
from torch_spmd._compat import pytree
from torch_spmd.torch_xla import _XLAC
from torch_spmd.torch_xla._sharding_type import ShardingType
from torch_spmd.torch_xla._tiles import OpSharding
from torch_spmd.torch_xla.core import xla_model
from torch_spmd.torch_xla.distributed.spmd.mesh import (
    HybridMesh,
    Mesh,
    PartitionSpec,
    get_1d_mesh,
    get_global_mesh,
    set_global_mesh,
)
from torch_spmd.torch_xla.distributed.spmd.xla_sharded_tensor import XLAShard, XLAShardedTensor

__all__ = [
    "EinsumLinear",
    "HybridMesh",
    "MarkShardingFunction",
    "Mesh",
    "PartitionSpec",
    "ShardingSpec",
    "ShardingType",
    "XLAPatchedLinear",
    "XLAShard",
    "XLAShardedTensor",
    "annotate_custom_sharding",
    "apply_backward_optimization_barrier",
    "apply_xla_patch_to_nn_linear",
    "clear_sharding",
    "disable_manual_sharding",
    "enable_manual_sharding",
    "get_1d_mesh",
    "get_global_mesh",
    "mark_sharding",
    "mark_sharding_with_gradients",
    "set_global_mesh",
    "shard_as",
    "unwrap_sharded_tensor",
    "wrap_as_sharded_tensor",
    "wrap_if_sharded",
    "xla_patched_nn_linear_forward",
]


def _check_rank(t: Tensor, spec: PartitionSpec) -> None:
    assert len(t.shape) == len(spec), (
        f"Partition spec length ({len(spec)}) should be equal to the input rank ({len(t.shape)})."
    )


def mark_sharding(t: Tensor, mesh: Mesh, partition_spec: PartitionSpec) -> XLAShardedTensor:
    """Marks a tensor, in place. The result stands for the same tensor.

    Args:
        t: a tensor on the device.
        mesh: a mesh over all devices.
        partition_spec: one entry per dimension: None, an axis by name or position, or a tuple of
            axes, major first.

    The same sharding once more, and another one where the tensor is marked replicated or is not
    computed yet, are accepted.

    Errors: AssertionError for a spec that does not fit; RuntimeError for a tensor that is not on
    the device or has another mark, and before `torch_xla.runtime.use_spmd()`.
    """
    _check_rank(t, partition_spec)
    _XLAC._xla_mark_sharding(unwrap_sharded_tensor(t), mesh.get_op_sharding(partition_spec))
    return _wrapped(t, mesh, partition_spec)


def annotate_custom_sharding(
    t: Tensor, mesh: Mesh, partition_spec: PartitionSpec
) -> XLAShardedTensor:
    """As `mark_sharding`, whatever mark the tensor has."""
    _check_rank(t, partition_spec)
    _XLAC._xla_annotate_custom_sharding(
        unwrap_sharded_tensor(t), mesh.get_op_sharding(partition_spec)
    )
    return _wrapped(t, mesh, partition_spec)


def clear_sharding(t: Tensor) -> Tensor:
    """Removes a tensor's mark and returns the tensor."""
    inner = unwrap_sharded_tensor(t)
    _XLAC._xla_clear_sharding(inner)
    return inner


def _wrapped(t: Tensor, mesh: Mesh, spec: PartitionSpec) -> XLAShardedTensor:
    result = wrap_as_sharded_tensor(t, mesh.mesh_shape, spec)
    result._mesh = mesh
    return result


def wrap_as_sharded_tensor(
    t: Tensor, mesh_shape: Any = None, partition_spec: Any = None
) -> XLAShardedTensor:
    """A tensor with a mesh's shape and a spec; of an XLAShardedTensor, the same with these."""
    if not isinstance(t, XLAShardedTensor):
        return XLAShardedTensor(t, mesh_shape, partition_spec)
    if mesh_shape is not None:
        t.mesh_shape = mesh_shape
    if partition_spec is not None:
        t.partition_spec = partition_spec
    if mesh_shape is not None or partition_spec is not None:
        t.invalidate_spec_cache()
    return t


def unwrap_sharded_tensor(t: Tensor) -> Tensor:
    return t.global_tensor if isinstance(t, XLAShardedTensor) else t


def wrap_if_sharded(x: Any) -> Any:
    """An XLAShardedTensor for a tensor that has a sharding, else what was given."""
    plain = isinstance(x, Tensor) and not isinstance(x, XLAShardedTensor)
    if plain and xla_model.is_xla_tensor(x) and _XLAC._get_xla_sharding_type(x) is not None:
        return XLAShardedTensor(x)
    return x


# --- marks of gradients ---


@torch.library.custom_op("xla::aot_mark_sharding", mutates_args=())
def _aot_mark_sharding(t: Tensor, mesh: str, partition_spec: str) -> Tensor:
    of = Mesh.from_str(mesh)
    assert of is not None, f"no mesh: {mesh}"
    copy = t.clone()
    _XLAC._xla_annotate_custom_sharding(copy, of.get_op_sharding(ast.literal_eval(partition_spec)))
    return copy


@_aot_mark_sharding.register_fake
def _(t: Tensor, mesh: str, partition_spec: str) -> Tensor:
    return torch.empty_like(t)


class MarkShardingFunction(torch.autograd.Function):
    """`apply(t, mesh, spec)` is a copy of `t` with a mark, whose gradient gets the same one."""

    @staticmethod
    def forward(ctx: Any, t: Tensor, mesh: Mesh, partition_spec: PartitionSpec) -> Tensor:
        ctx.texts = str(mesh), str(partition_spec)
        return torch.ops.xla.aot_mark_sharding(unwrap_sharded_tensor(t), *ctx.texts)

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> Any:
        return torch.ops.xla.aot_mark_sharding(gradient, *ctx.texts), None, None


def mark_sharding_with_gradients(t: Tensor, mesh: Mesh, partition_spec: PartitionSpec) -> Tensor:
    """A copy of `t` with a mark; its gradient gets the same one. `t` stays as it is."""
    _check_rank(t, partition_spec)
    result: Tensor = MarkShardingFunction.apply(t, mesh, partition_spec)
    return result


def shard_as(a: Any, b: Any) -> tuple[Any, Any]:
    """Trees of the same form, whose tensors are sharded in pairs alike.

    A tensor without a mark gets that of its partner; if neither has one, both get the sharding that
    the compiler would choose for the first.

    Errors: AssertionError for trees of different forms.
    """
    (ours, form), (theirs, other) = pytree.tree_flatten(a), pytree.tree_flatten(b)
    assert form == other, f"a and b must have the same structure. got {form} and {other}"
    pairs = [_alike(x, y) for x, y in zip(ours, theirs)]
    first = pytree.tree_unflatten([x for x, _ in pairs], form)
    return first, pytree.tree_unflatten([y for _, y in pairs], form)


def _alike(x: Any, y: Any) -> tuple[Any, Any]:
    if not isinstance(x, Tensor) or not isinstance(y, Tensor):
        assert (x is None) == (y is None), "a and b must have None at the same places"
        return x, y
    plain = [unwrap_sharded_tensor(t) for t in (x, y)]
    known = [spmd.sharding_of(t) for t in plain]
    best = next((s for s in known if s.is_committed), known[0])
    return tuple(  # type: ignore[return-value]
        t if s == best and s.is_committed else spmd.reshard(t, best.mesh, best.spec)
        for t, s in zip(plain, known)
    )


# --- manual regions ---


def _mark_manual_sharding(t: Tensor) -> XLAShardedTensor:
    """Says of a pending value that every device has it as its own part."""
    manual = OpSharding([], [], [], ShardingType.MANUAL)
    _XLAC._mark_manual_sharding(unwrap_sharded_tensor(t), manual)
    return wrap_as_sharded_tensor(t)


def enable_manual_sharding(
    t: Tensor, partition_spec: PartitionSpec, *, mesh: Mesh | None = None
) -> XLAShardedTensor:
    """What each device holds of `t` with this sharding: a tensor with the shape of one part, on
    which ops apply to every part by itself until `disable_manual_sharding`."""
    mesh = _mesh_or_global(mesh)
    marked = mark_sharding(unwrap_sharded_tensor(t), mesh, partition_spec)
    part = _XLAC._spmd_full_to_shard_shape(marked.global_tensor)
    return _wrapped(part, mesh, partition_spec)


def disable_manual_sharding(
    t: Tensor,
    partition_spec: PartitionSpec,
    full_shape: Sequence[int],
    *,
    mesh: Mesh | None = None,
) -> XLAShardedTensor:
    """The tensor of which `t` has the parts."""
    mesh = _mesh_or_global(mesh)
    part = _mark_manual_sharding(unwrap_sharded_tensor(t)).global_tensor
    full = _XLAC._spmd_shard_to_full_shape(
        part, mesh.get_op_sharding(partition_spec), full_shape, part.dtype
    )
    return _wrapped(full, mesh, partition_spec)


def _mesh_or_global(mesh: Mesh | None) -> Mesh:
    """Errors: AttributeError if there is neither."""
    mesh = mesh if mesh is not None else get_global_mesh()
    if mesh is None:
        raise AttributeError("no mesh was given and there is no global one: xs.set_global_mesh")
    return mesh


# --- specs of loaders ---


@dataclass
class ShardingSpec:
    """How a loader shards the tensors whose rank is the spec's. With `minibatch` each host feeds
    its part of the batch; here one host feeds all.

    Errors: as `Mesh.get_op_sharding`.
    """

    mesh: Mesh
    partition_spec: PartitionSpec
    minibatch: bool | None = False
    _sharding: OpSharding = field(init=False, repr=False)

    def __post_init__(self) -> None:
        self._sharding = self.mesh.get_op_sharding(self.partition_spec)

    def xla_spec(self, t: Tensor) -> _XLAC.XlaShardingSpec | None:
        """None for a tensor of another rank."""
        if not self.can_apply(t):
            return None
        return _XLAC.XlaShardingSpec(t, self._sharding, bool(self.minibatch))

    def can_apply(self, t: Tensor) -> bool:
        return len(t.shape) == len(self.partition_spec)

    def apply(self, t: Tensor) -> None:
        """Marks a tensor that is on the device."""
        assert xla_model.is_xla_tensor(t), f"the tensor is on {t.device}, not on the device"
        mark_sharding(t, self.mesh, self.partition_spec)


# --- linear layers: PyTorch's own keep the dimensions of a batch sharded ---


class XLAPatchedLinear(torch.autograd.Function):
    """`apply(input, weight, bias)` is `torch.nn.functional.linear`."""

    @staticmethod
    def forward(ctx: Any, input: Tensor, weight: Tensor, bias: Tensor | None = None) -> Tensor:
        ctx.save_for_backward(input, weight)
        ctx.has_bias = bias is not None
        return nn.functional.linear(input, weight, bias)

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> Any:
        input, weight = ctx.saved_tensors
        batch = list(range(gradient.dim() - 1))
        of_input = gradient @ weight if ctx.needs_input_grad[0] else None
        of_weight = torch.tensordot(gradient, input, (batch, batch))
        of_bias = gradient.sum(batch) if ctx.has_bias and ctx.needs_input_grad[2] else None
        return of_input, of_weight if ctx.needs_input_grad[1] else None, of_bias


def xla_patched_nn_linear_forward(m: Any, input: Tensor) -> Tensor:
    return nn.functional.linear(input, m.weight, m.bias)


class EinsumLinear(nn.Linear):
    """`nn.Linear`, whose products keep their dimensions here anyhow."""


def apply_xla_patch_to_nn_linear(module: nn.Module, *_: Any) -> nn.Module:
    """Returns the module as it is: `nn.Linear` needs no patch here."""
    return module


def apply_backward_optimization_barrier(m: nn.Module) -> None:
    """Does nothing: gradients are not fused across modules here."""
