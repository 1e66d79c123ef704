# SPDX-License-Identifier: Apache-2.0
"""Batches that are on the device, sharded, before the step asks for them."""

from torch_spmd.data.loader import Loader

__all__ = ["Loader"]
