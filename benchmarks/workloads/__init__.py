# SPDX-License-Identifier: Apache-2.0
"""The yardstick: models as a user would write them, with their meshes and marks.

`WORKLOADS[name](annotated)` creates the tensors, marks inputs and parameters (and activations, if
`annotated`), and returns a `Workload` whose `step()` is one training step. Nothing needs to be
computed: on a planning backend a step compiles the program, whose figures can be read.
"""

from collections.abc import Callable

from benchmarks.workloads import conformer, gpt, llama, mlp, moe, resnet, stylegan2, unet3d
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
    "sg2_d": stylegan2.discriminator,
    "sg2_g": stylegan2.generator,
    "unet3d": unet3d.build,
    "conformer": conformer.build,
}

__all__ = ["WORKLOADS", "Workload"]
