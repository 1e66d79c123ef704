# SPDX-License-Identifier: Apache-2.0
"""The losses of `benchmarks/workloads` in JAX, by the same names."""

from benchmarks.peers.models import conformer, gpt, llama, mlp, moe, resnet, stylegan2, unet3d
from benchmarks.peers.models.common import Loss

LOSSES: dict[str, Loss] = {
    "mlp": mlp.loss,
    "gpt_dp": gpt.loss,
    "gpt_fsdp": gpt.loss,
    "gpt_zero1": gpt.loss,
    "gpt_tp": gpt.loss,
    "gpt_tpsp": gpt.sequence_parallel,
    "llama": llama.loss,
    "moe": moe.loss,
    "resnet50": resnet.loss,
    "sg2_d": stylegan2.discriminator,
    "sg2_g": stylegan2.generator,
    "unet3d": unet3d.loss,
    "conformer": conformer.loss,
}
