# SPDX-License-Identifier: Apache-2.0
"""The yardstick: models as a user would write them, with their meshes and marks.

`WORKLOADS[name](annotated)` makes the tensors, marks inputs and parameters (and activations, if
`annotated`), and returns a `Workload` whose `step()` is one training step. Nothing needs to be
computed: on a planning backend a step gives the program, and its figures can be read.
"""

from collections.abc import Callable

from benchmarks.workloads import gpt, llama, mlp, moe, resnet
from benchmarks.workloads.common import Workload

WORKLOADS: dict[str, Callable[[bool], Workload]] = {
    "mlp": mlp.build,
    "gpt_dp": gpt.data_parallel,
    "gpt_fsdp": gpt.fully_sharded,
    "gpt_zero1": gpt.sharded_optimizer,
    "gpt_tp": gpt.tensor_parallel,
    "gpt_tpsp": gpt.sequence_parallel,
    "llama": llama.build,
    "moe": moe.build,
    "resnet50": resnet.build,
}

__all__ = ["WORKLOADS", "Workload"]
