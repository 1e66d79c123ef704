# SPDX-License-Identifier: Apache-2.0
"""Checkpointing of modules."""

from __future__ import annotations

import types
from typing import Any

from torch import nn

from torch_spmd.torch_xla.distributed.spmd.xla_sharding import apply_xla_patch_to_nn_linear
from torch_spmd.torch_xla.utils.checkpoint import checkpoint


def checkpoint_module(module: nn.Module) -> nn.Module:
    """Makes a module's forward pass run again in the backward pass, in place. Returns the module.

    Apply it before the module is wrapped.
    """
    forward = module.forward

    def with_checkpoint(self: nn.Module, *args: Any, **kwargs: Any) -> Any:
        return checkpoint(forward, *args, use_reentrant=False, **kwargs)

    module.forward = types.MethodType(with_checkpoint, module)
    return module


__all__ = ["apply_xla_patch_to_nn_linear", "checkpoint_module"]
