# SPDX-License-Identifier: Apache-2.0
"""benchmarks/workloads/llama.py in JAX."""

import jax
import jax.numpy as jnp
from jax import Array

from benchmarks.peers.models.common import (
    Arrays,
    Setting,
    attention,
    cross_entropy,
    join_heads,
    linear,
    rms_norm,
    split_heads,
    within,
)


def rotate(x: Array) -> Array:
    """Rotary positions on [batch, head, length, width of a head]."""
    length, half = x.shape[2], x.shape[3] // 2
    angle = jnp.arange(length)[:, None] * 10000.0 ** (-jnp.arange(half) / half)
    cos, sin = jnp.cos(angle), jnp.sin(angle)
    a, b = jnp.split(x, 2, -1)
    return jnp.concatenate([a * cos - b * sin, b * cos + a * sin], -1)


def block(setting: Setting, p: Arrays, x: Array) -> Array:
    h = rms_norm(p, "norm1", x)
    q, k, v = (split_heads(linear(p, name, h), setting.sizes["HEADS"]) for name in "qkv")
    x = x + linear(p, "o", join_heads(attention(rotate(q), rotate(k), v)))
    h = rms_norm(p, "norm2", x)
    x = x + linear(p, "down", jax.nn.silu(linear(p, "gate", h)) * linear(p, "up", h))
    return setting.mark(x, "data", None, "model")


def loss(setting: Setting, p: Arrays, given: Arrays) -> Array:
    x = setting.mark(p["embed.weight"][given["inputs"]], "data", None, "model")
    for i in range(setting.sizes["LAYERS"]):
        x = block(setting, within(f"blocks.{i}", p), x)
    return cross_entropy(linear(p, "head", rms_norm(p, "norm", x)), given["targets"])
