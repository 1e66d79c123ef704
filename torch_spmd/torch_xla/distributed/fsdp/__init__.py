# SPDX-License-Identifier: Apache-2.0
"""Wrap policies and helpers of FSDP. The wrapper itself is
`experimental.spmd_fully_sharded_data_parallel`."""

from torch_spmd.torch_xla.distributed.fsdp.utils import checkpoint_module

__all__ = ["checkpoint_module"]
