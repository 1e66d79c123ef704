# SPDX-License-Identifier: Apache-2.0
"""`xs`: meshes, marks and sharded tensors, as torch_xla names them."""

from torch_spmd.torch_xla.distributed.spmd import xla_sharding
from torch_spmd.torch_xla.distributed.spmd.api import (
    auto_policy,
    xla_distribute_module,
    xla_distribute_tensor,
)
from torch_spmd.torch_xla.distributed.spmd.mesh import (
    HybridMesh,
    Mesh,
    get_1d_mesh,
    get_global_mesh,
    set_global_mesh,
)
from torch_spmd.torch_xla.distributed.spmd.xla_sharded_tensor import XLAShard, XLAShardedTensor
from torch_spmd.torch_xla.distributed.spmd.xla_sharding import (
    MarkShardingFunction,
    ShardingSpec,
    ShardingType,
    XLAPatchedLinear,
    _mark_manual_sharding,
    annotate_custom_sharding,
    apply_backward_optimization_barrier,
    clear_sharding,
    disable_manual_sharding,
    enable_manual_sharding,
    mark_sharding,
    mark_sharding_with_gradients,
    shard_as,
    wrap_if_sharded,
    xla_patched_nn_linear_forward,
)

__all__ = [
    "HybridMesh",
    "MarkShardingFunction",
    "Mesh",
    "ShardingSpec",
    "ShardingType",
    "XLAPatchedLinear",
    "XLAShard",
    "XLAShardedTensor",
    "_mark_manual_sharding",
    "annotate_custom_sharding",
    "apply_backward_optimization_barrier",
    "auto_policy",
    "clear_sharding",
    "disable_manual_sharding",
    "enable_manual_sharding",
    "get_1d_mesh",
    "get_global_mesh",
    "mark_sharding",
    "mark_sharding_with_gradients",
    "set_global_mesh",
    "shard_as",
    "wrap_if_sharded",
    "xla_distribute_module",
    "xla_distribute_tensor",
    "xla_patched_nn_linear_forward",
    "xla_sharding",
]
