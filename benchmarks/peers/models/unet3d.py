# SPDX-License-Identifier: Apache-2.0
"""benchmarks/workloads/unet3d.py in JAX."""

import jax
import jax.numpy as jnp
from jax import Array

from benchmarks.peers.models.common import (
    Arrays,
    Setting,
    convolve,
    convolve_transposed,
    cross_entropy,
    max_pool,
    normalise,
    within,
)


def level(p: Arrays, x: Array) -> Array:
    """Twice: convolution over 3³, instance norm, ReLU."""
    for convolution, norm in (("0", "1"), ("3", "4")):
        x = convolve(x, p[f"{convolution}.weight"], padding=1)
        scale, bias = (p[f"{norm}.{part}"][:, None, None, None] for part in ("weight", "bias"))
        x = jax.nn.relu(normalise(x, (2, 3, 4)) * scale + bias)
    return x


def loss(setting: Setting, p: Arrays, given: Arrays) -> Array:
    def mark(x: Array) -> Array:
        return setting.mark(x, None, None, "x", "y", "z")

    x, kept = given["volume"], []
    for i in range(3):
        x = mark(level(within(f"down.{i}", p), max_pool(x, 2, 2) if i else x))
        kept.append(x)
    for i, skip in enumerate(kept[-2::-1]):
        weight = p[f"grow.{i}.weight"].swapaxes(0, 1)
        x = jnp.concatenate([skip, mark(convolve_transposed(x, weight, stride=2))], 1)
        x = mark(level(within(f"up.{i}", p), x))
    logits = convolve(x, p["head.weight"]) + p["head.bias"][:, None, None, None]
    return cross_entropy(jnp.moveaxis(logits, 1, -1), given["labels"])
