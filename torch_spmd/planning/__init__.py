# SPDX-License-Identifier: Apache-2.0
"""What a training step would take on machines, and how to shard it there (docs/planning.md).

`python -m torch_spmd.planning` prints the table of `plan`.
"""

from torch_spmd.planning.assumed import assume
from torch_spmd.planning.planner import plan
from torch_spmd.planning.proposals import auto_shard

__all__ = ["assume", "auto_shard", "plan"]
