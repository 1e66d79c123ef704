# SPDX-License-Identifier: Apache-2.0
"""Activation checkpointing: PyTorch's own works on the device."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch.utils.checkpoint


def checkpoint(
    function: Callable[..., Any], *args: Any, use_reentrant: bool = True, **kwargs: Any
) -> Any:
    """`torch.utils.checkpoint.checkpoint`. The program keeps what is computed twice apart."""
    return torch.utils.checkpoint.checkpoint(function, *args, use_reentrant=use_reentrant, **kwargs)
