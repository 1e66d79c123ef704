# SPDX-License-Identifier: Apache-2.0
"""What the models in JAX share. Parameters are the PyTorch model's, by name, in its layouts."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import jax
import jax.numpy as jnp
from jax import Array, lax
from jax.sharding import Mesh, NamedSharding, PartitionSpec

Arrays = dict[str, Array]


@dataclass(frozen=True)
class Setting:
    """What a loss needs to know: the mesh, whether activations are annotated, and the constants
    of the workload in PyTorch."""

    mesh: Mesh
    annotated: bool
    sizes: dict[str, int]

    def mark(self, x: Array, *spec: Any) -> Array:
        if not self.annotated:
            return x
        return lax.with_sharding_constraint(x, NamedSharding(self.mesh, PartitionSpec(*spec)))

    def axis(self, *names: str) -> str | None:
        """The first of these axes that the mesh has."""
        return next((name for name in names if name in self.mesh.axis_names), None)


Loss = Callable[[Setting, Arrays, Arrays], Array]


def within(prefix: str, arrays: Arrays) -> Arrays:
    """The parameters whose name begins with `prefix.`, without that prefix."""
    start = prefix + "."
    return {name[len(start) :]: a for name, a in arrays.items() if name.startswith(start)}


def linear(p: Arrays, name: str, x: Array) -> Array:
    y = x @ p[f"{name}.weight"].T
    return y + p[f"{name}.bias"] if f"{name}.bias" in p else y


def normalise(x: Array, axes: int | tuple[int, ...], eps: float = 1e-5) -> Array:
    """To mean 0 and variance 1 over `axes`."""
    centred = x - x.mean(axes, keepdims=True)
    return centred * lax.rsqrt(jnp.square(centred).mean(axes, keepdims=True) + eps)


def layer_norm(p: Arrays, name: str, x: Array) -> Array:
    return normalise(x, -1) * p[f"{name}.weight"] + p[f"{name}.bias"]


def rms_norm(p: Arrays, name: str, x: Array, eps: float = 1e-6) -> Array:
    return x * lax.rsqrt(jnp.square(x).mean(-1, keepdims=True) + eps) * p[f"{name}.weight"]


def split_heads(x: Array, heads: int) -> Array:
    """[batch, length, width] → [batch, head, length, width of a head]."""
    return x.reshape(*x.shape[:2], heads, -1).transpose(0, 2, 1, 3)


def join_heads(x: Array) -> Array:
    return x.transpose(0, 2, 1, 3).reshape(x.shape[0], x.shape[2], -1)


def attention(q: Array, k: Array, v: Array, causal: bool = True) -> Array:
    scores = jnp.einsum("bhqd,bhkd->bhqk", q, k) / math.sqrt(q.shape[-1])
    if causal:
        scores = jnp.where(jnp.tril(jnp.ones(scores.shape[-2:], bool)), scores, -jnp.inf)
    return jnp.einsum("bhqk,bhkd->bhqd", jax.nn.softmax(scores), v)


def cross_entropy(logits: Array, targets: Array) -> Array:
    """Mean over all but the last dimension, which is that of the classes."""
    right = jnp.take_along_axis(logits, targets[..., None], -1)[..., 0]
    return (jax.nn.logsumexp(logits, -1) - right).mean()


def convolve(
    x: Array, weight: Array, *, padding: int = 0, stride: int = 1, groups: int = 1
) -> Array:
    """As `torch.nn.functional.conv1d` and so on: [batch, channel, …], [output, input, …]."""
    n = x.ndim - 2
    return lax.conv_general_dilated(
        x, weight, (stride,) * n, [(padding, padding)] * n, feature_group_count=groups
    )


def convolve_transposed(
    x: Array, weight: Array, *, padding: int = 0, stride: int = 1, groups: int = 1
) -> Array:
    """As `torch.nn.functional.conv_transpose2d` and so on, but for the weight: [output, input, …].

    Zeros between the elements of `x`, then a convolution with the reversed kernel.
    """
    n = x.ndim - 2
    around = [(k - 1 - padding,) * 2 for k in weight.shape[2:]]
    return lax.conv_general_dilated(
        x,
        jnp.flip(weight, range(2, weight.ndim)),
        (1,) * n,
        around,
        lhs_dilation=(stride,) * n,
        feature_group_count=groups,
    )


def max_pool(x: Array, size: int, stride: int, padding: int = 0) -> Array:
    n = x.ndim - 2
    edge = ((0, 0), (0, 0), *((padding, padding),) * n)
    window, strides = (1, 1, *(size,) * n), (1, 1, *(stride,) * n)
    return lax.reduce_window(x, -jnp.inf, lax.max, window, strides, edge)
