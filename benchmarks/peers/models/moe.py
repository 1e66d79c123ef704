# SPDX-License-Identifier: Apache-2.0
"""benchmarks/workloads/moe.py in JAX."""

import jax
import jax.numpy as jnp
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


def route(p: Arrays, x: Array, experts: int, capacity: int) -> tuple[Array, Array]:
    """[group, token, width] → weights [group, token, expert, slot], and the balance loss."""
    likely = jax.nn.softmax(linear(p, "gate", x))
    first = jax.nn.one_hot(likely.argmax(-1), experts)
    rest = likely * (1 - first)
    second = jax.nn.one_hot(rest.argmax(-1), experts)
    weight1, weight2 = (likely * first).sum(-1), (likely * second).sum(-1)
    balance = (first.mean(1) * likely.mean(1)).sum(-1).mean() * experts
    place1 = jnp.cumsum(first, 1) * first - first
    first = first * (place1 < capacity)
    place2 = (jnp.cumsum(second, 1) - second + first.sum(1, keepdims=True)) * second
    second = second * (place2 < capacity)
    weight1, weight2 = weight1 * first.sum(-1), weight2 * second.sum(-1)
    total = weight1 + weight2 + 1e-9

    def combine(weight: Array, chosen: Array, place: Array) -> Array:
        slot = jax.nn.one_hot((place * chosen).sum(-1).astype(int), capacity)
        return (weight / total)[..., None, None] * chosen[..., None] * slot[:, :, None]

    return combine(weight1, first, place1) + combine(weight2, second, place2), balance


def feed_forward(setting: Setting, p: Arrays, h: Array) -> tuple[Array, Array | float]:
    if "gate.weight" not in p:
        return linear(p, "down", jax.nn.gelu(linear(p, "up", h), approximate=True)), 0.0
    weights, balance = route(p, h, setting.sizes["EXPERTS"], setting.sizes["CAPACITY"])
    sent = jnp.einsum("gsec,gsm->egcm", (weights > 0).astype(h.dtype), h)
    sent = setting.mark(sent, "expert", None, None, None)
    y = jax.nn.relu(jnp.einsum("egcm,emf->egcf", sent, p["expert_up"]))
    y = jnp.einsum("egcf,efm->egcm", y, p["expert_down"])
    y = setting.mark(y, "expert", None, None, None)
    return jnp.einsum("gsec,egcm->gsm", weights, y), balance


def loss(setting: Setting, p: Arrays, given: Arrays) -> Array:
    x = setting.mark(p["tokens.weight"][given["inputs"]], "expert", None, None)
    balance: Array | float = 0.0
    for i in range(setting.sizes["LAYERS"]):
        block = within(f"blocks.{i}", p)
        h = layer_norm(block, "norm1", x)
        q, k, v = (split_heads(linear(block, name, h), setting.sizes["HEADS"]) for name in "qkv")
        x = x + linear(block, "o", join_heads(attention(q, k, v)))
        x = setting.mark(x, "expert", None, None)
        y, more = feed_forward(setting, block, layer_norm(block, "norm2", x))
        x, balance = setting.mark(x + y, "expert", None, None), balance + more
    logits = layer_norm(p, "norm", x) @ p["tokens.weight"].T
    return cross_entropy(logits, given["targets"]) + 0.01 * balance
