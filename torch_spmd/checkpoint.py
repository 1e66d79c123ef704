# SPDX-License-Identifier: Apache-2.0
"""State in files: training state, safetensors, and what PyTorch writes.

`save` and `load` are also `spmd.save` and `spmd.load`.
"""

from torch_spmd.state.checkpointer import (
    Checkpointer,
)
from torch_spmd.state.checkpoints import (
    CheckpointError,
    LoadReport,
    RandomState,
    Saving,
    last_load,
    load,
    save,
)

__all__ = [
    "CheckpointError",
    "Checkpointer",
    "LoadReport",
    "RandomState",
    "Saving",
    "last_load",
    "load",
    "save",
]
