# SPDX-License-Identifier: Apache-2.0
"""benchmarks/workloads/gpt.py in JAX; its sharding follows from the mesh."""

from dataclasses import replace

import jax
from jax import Array

from benchmarks.peers.models.common import (
    Arrays,
    Setting,
    attention,
    cross_entropy,
    join_heads,
    layer_norm,
    linear,
    split_heads,
    within,
)


def block(setting: Setting, positions: str | None, p: Arrays, x: Array) -> Array:
    """`positions`: the axis that shards the residual stream's second dimension."""
    data, model = setting.axis("data", "fsdp"), setting.axis("model")
    h = layer_norm(p, "norm1", x)
    q, k, v = (
        setting.mark(
            split_heads(linear(p, name, h), setting.sizes["HEADS"]), data, model, None, None
        )
        for name in "qkv"
    )
    x = setting.mark(x + linear(p, "out", join_heads(attention(q, k, v))), data, positions, None)
    h = jax.nn.gelu(linear(p, "up", layer_norm(p, "norm2", x)), approximate=True)
    h = setting.mark(h, data, None, model)
    return setting.mark(x + linear(p, "down", h), data, positions, None)


def loss(setting: Setting, p: Arrays, given: Arrays, *, positions: str | None = None) -> Array:
    data, model = setting.axis("data", "fsdp"), setting.axis("model")
    length = given["inputs"].shape[1]
    x = p["tokens.weight"][given["inputs"]] + p["positions.weight"][:length]
    x = setting.mark(x, data, positions, None)
    for i in range(setting.sizes["LAYERS"]):
        x = block(setting, positions, within(f"blocks.{i}", p), x)
    logits = layer_norm(p, "norm", x) @ p["tokens.weight"].T
    return cross_entropy(setting.mark(logits, data, None, model), given["targets"])


def sequence_parallel(setting: Setting, p: Arrays, given: Arrays) -> Array:
    """Always annotated."""
    return loss(replace(setting, annotated=True), p, given, positions="model")
