# SPDX-License-Identifier: Apache-2.0
"""benchmarks/workloads/resnet.py in JAX."""

import jax
import jax.numpy as jnp
from jax import Array, lax

from benchmarks.peers.models.common import (
    Arrays,
    Setting,
    convolve,
    cross_entropy,
    linear,
    max_pool,
    within,
)


def layer(p: Arrays, name: str, x: Array, stride: int = 1) -> Array:
    """Convolution and batch norm over the batch's own statistics."""
    weight = p[f"{name}.weight"]
    y = convolve(x, weight, padding=(weight.shape[-1] - 1) // 2, stride=stride)
    scale, bias = (p[f"{name}.norm.{part}"][:, None, None] for part in ("weight", "bias"))
    # Both sums in one pass, as is usual in JAX, so that they are reduced together.
    mean, square = (z.mean((0, 2, 3), keepdims=True) for z in (y, jnp.square(y)))
    return (y - mean) * lax.rsqrt(square - jnp.square(mean) + 1e-5) * scale + bias


def bottleneck(p: Arrays, x: Array) -> Array:
    width, inputs = p["reduce.weight"].shape[:2]
    projects = "skip.weight" in p
    stride = 2 if projects and inputs != width else 1  # all stages but the first halve the image
    y = jax.nn.relu(layer(p, "reduce", x))
    y = layer(p, "expand", jax.nn.relu(layer(p, "spatial", y, stride)))
    return jax.nn.relu(y + (layer(p, "skip", x, stride) if projects else x))


def loss(setting: Setting, p: Arrays, given: Arrays) -> Array:
    x = max_pool(jax.nn.relu(layer(p, "stem", given["images"], 2)), 3, 2, 1)
    x = setting.mark(x, "data", None, "spatial", None)
    blocks = 1 + max(int(name.split(".")[1]) for name in p if name.startswith("blocks."))
    for i in range(blocks):
        x = setting.mark(bottleneck(within(f"blocks.{i}", p), x), "data", None, "spatial", None)
    return cross_entropy(linear(p, "head", x.mean((2, 3))), given["labels"])
