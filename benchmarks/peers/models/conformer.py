# SPDX-License-Identifier: Apache-2.0
"""benchmarks/workloads/conformer.py in JAX: the pipeline's steps are a scan, its stages a vmap."""

import jax
import jax.numpy as jnp
from jax import Array, lax

from benchmarks.peers.models.common import (
    Arrays,
    Setting,
    attention,
    convolve,
    cross_entropy,
    join_heads,
    layer_norm,
    linear,
    split_heads,
    within,
)


def project(p: Arrays, name: str, x: Array) -> Array:
    """Weights of the stages are [input, output]."""
    return x @ p[f"{name}.weight"]


def feed_forward(p: Arrays, x: Array) -> Array:
    return x + 0.5 * project(p, "down", jax.nn.silu(project(p, "up", layer_norm(p, "norm", x))))


def attend(p: Arrays, x: Array, heads: int) -> Array:
    h = layer_norm(p, "norm", x)
    q, k, v = (split_heads(project(p, name, h), heads) for name in "qkv")
    return x + project(p, "o", join_heads(attention(q, k, v, causal=False)))


def convolution(p: Arrays, x: Array) -> Array:
    h = jax.nn.glu(project(p, "gate", layer_norm(p, "norm", x))).swapaxes(1, 2)
    kernel = p["kernel"]
    h = convolve(h, kernel, padding=kernel.shape[-1] // 2, groups=h.shape[1]).swapaxes(1, 2)
    return x + project(p, "project", jax.nn.silu(layer_norm(p, "norm2", h)))


def block(p: Arrays, x: Array, heads: int) -> Array:
    x = feed_forward(within("0", p), x)
    x = attend(within("1", p), x, heads)
    x = convolution(within("2", p), x)
    x = feed_forward(within("3", p), x)
    return layer_norm(p, "4", x)


def loss(setting: Setting, p: Arrays, given: Arrays) -> Array:
    sizes, inputs = setting.sizes, given["inputs"]

    def buffer(x: Array) -> Array:
        return setting.mark(x, "stage", "data", None, None)

    def stage(weights: Arrays, x: Array) -> Array:
        for i in range(sizes["BLOCKS"]):
            x = block(within(str(i), weights), x, sizes["HEADS"])
        return x

    def step(filled: Array, number: Array) -> tuple[Array, Array]:
        last = jnp.minimum(number, sizes["MICRO_BATCHES"] - 1)
        new = lax.dynamic_index_in_dim(inputs, last)
        filled = buffer(jnp.concatenate([new, filled[:-1]]))
        filled = buffer(jax.vmap(stage)(within("stages", p), filled))
        return filled, filled[-1]

    empty = buffer(jnp.zeros((sizes["STAGES"], *inputs.shape[1:]), inputs.dtype))
    steps = jnp.arange(sizes["MICRO_BATCHES"] + sizes["STAGES"] - 1)
    _, results = lax.scan(step, empty, steps)
    return cross_entropy(linear(p, "head", results[sizes["STAGES"] - 1 :]), given["targets"])
