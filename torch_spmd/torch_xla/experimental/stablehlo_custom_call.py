# SPDX-License-Identifier: Apache-2.0
"""Where a value is to be kept: `place_to_host` and `place_to_device`, which are copies here."""

from torch_spmd.torch_xla._ops import place_to_device, place_to_host

__all__ = ["place_to_device", "place_to_host"]
