# SPDX-License-Identifier: Apache-2.0
"""Settings of the process: its backend, its switches, its random numbers.

`update` changes settings, for good or in a `with` statement. Environment variables set them from
the start (docs/settings.md).
"""

from torch_spmd.device.backend import describe_devices, device_count, manual_seed, set_backend
from torch_spmd.device.options import current, update

__all__ = ["current", "describe_devices", "device_count", "manual_seed", "set_backend", "update"]
