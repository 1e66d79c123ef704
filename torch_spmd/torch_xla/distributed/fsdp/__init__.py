# SPDX-License-Identifier: Apache-2.0
"""FSDP: the wrapper, wrap policies and helpers. That of SPMD scripts is
`experimental.spmd_fully_sharded_data_parallel`."""

from torch_spmd.torch_xla.distributed.fsdp.state_dict_utils import (
    consolidate_sharded_model_checkpoints,
    consolidate_sharded_state_dicts,
)
from torch_spmd.torch_xla.distributed.fsdp.utils import checkpoint_module
from torch_spmd.torch_xla.distributed.fsdp.xla_fully_sharded_data_parallel import (
    XlaFullyShardedDataParallel,
)

__all__ = [
    "XlaFullyShardedDataParallel",
    "checkpoint_module",
    "consolidate_sharded_model_checkpoints",
    "consolidate_sharded_state_dicts",
]
