# SPDX-License-Identifier: Apache-2.0
"""Optimizer states before a checkpoint is read."""

from __future__ import annotations

import torch

from torch_spmd import torch_xla
from torch_spmd.torch_xla import _XLAC
from torch_spmd.torch_xla.core import xla_model


def prime_optimizer(optimizer: torch.optim.Optimizer) -> torch.optim.Optimizer:
    """Creates the state of an optimizer by a step with gradients of zero, so that a checkpoint can
    be read into it. Parameters may change: read them from the checkpoint, too. Returns the
    optimizer."""
    torch_xla.sync()
    for group in optimizer.param_groups:
        for parameter in group["params"]:
            if parameter.requires_grad:
                parameter.grad = torch.zeros_like(parameter, requires_grad=False)
                sharding = _XLAC._get_xla_op_sharding(parameter)
                if sharding is not None:
                    _XLAC._xla_annotate_custom_sharding(parameter.grad, sharding)
    optimizer.step()
    torch_xla.sync()
    xla_model.wait_device_ops()
    return optimizer
