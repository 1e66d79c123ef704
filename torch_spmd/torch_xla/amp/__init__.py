# SPDX-License-Identifier: Apache-2.0
"""Autocast and optimizers."""

from torch.amp import GradScaler

from torch_spmd.torch_xla.amp.autocast_mode import autocast

__all__ = ["GradScaler", "autocast"]
