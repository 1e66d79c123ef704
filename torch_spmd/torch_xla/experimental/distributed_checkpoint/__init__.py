# SPDX-License-Identifier: Apache-2.0
"""Checkpoints of sharded tensors by `torch.distributed.checkpoint`: each part is written once, and
read into whatever sharding a tensor has."""

from torch_spmd.torch_xla.experimental.distributed_checkpoint.manager import CheckpointManager
from torch_spmd.torch_xla.experimental.distributed_checkpoint.planners import (
    SPMDLoadPlanner,
    SPMDSavePlanner,
)
from torch_spmd.torch_xla.experimental.distributed_checkpoint.util import prime_optimizer

__all__ = ["CheckpointManager", "SPMDLoadPlanner", "SPMDSavePlanner", "prime_optimizer"]
