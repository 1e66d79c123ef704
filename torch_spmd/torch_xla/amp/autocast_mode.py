# SPDX-License-Identifier: Apache-2.0
"""Autocast of the device."""

from __future__ import annotations

from typing import Any

import torch


class autocast(torch.amp.autocast_mode.autocast):
    """`torch.autocast` of the device; the default type is bfloat16."""

    def __init__(
        self,
        device: Any,
        enabled: bool = True,
        dtype: torch.dtype | None = None,
        cache_enabled: bool | None = None,
    ) -> None:
        super().__init__("spmd", dtype or torch.bfloat16, enabled, cache_enabled)
