# SPDX-License-Identifier: Apache-2.0
"""Modules that torch_xla calls experimental."""

from torch_spmd.torch_xla.experimental.eager import eager_mode, eager_mode_context, is_eager_mode

__all__ = ["eager_mode", "eager_mode_context", "is_eager_mode"]
