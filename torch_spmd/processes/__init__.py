# SPDX-License-Identifier: Apache-2.0
"""The processes that run one script on the devices of all of them (docs/processes.md)."""

from torch_spmd.processes.local_data import (
    from_process_local,
    local_devices,
    process_count,
    process_index,
)

__all__ = ["from_process_local", "local_devices", "process_count", "process_index"]
