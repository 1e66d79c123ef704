# SPDX-License-Identifier: Apache-2.0
"""benchmarks/workloads/stylegan2.py in JAX."""

from __future__ import annotations

import math

import jax
import jax.numpy as jnp
import numpy as np
from jax import Array, lax

from benchmarks.peers.models.common import (
    Arrays,
    Setting,
    convolve,
    convolve_transposed,
    linear,
    within,
)

LINE = np.array([1.0, 3.0, 3.0, 1.0], np.float32) / 8
FILTER = np.outer(LINE, LINE)


def rows(setting: Setting, x: Array) -> Array:
    """Shards the rows of maps that have at least 32."""
    return setting.mark(x, None, None, "spatial", None) if x.shape[2] >= 32 else x


def activate(x: Array, bias: Array) -> Array:
    return jax.nn.leaky_relu(x + bias[:, None, None], 0.2) * math.sqrt(2)


def filter_weight(x: Array, gain: float = 1.0) -> Array:
    return jnp.broadcast_to(jnp.asarray(FILTER * np.float32(gain)), (x.shape[1], 1, 4, 4))


def smooth(x: Array, *, padding: int, stride: int = 1, gain: float = 1.0) -> Array:
    weight = filter_weight(x, gain)
    return convolve(x, weight, padding=padding, stride=stride, groups=x.shape[1])


def twice(x: Array) -> Array:
    """Twice as many rows and columns."""
    return convolve_transposed(x, filter_weight(x, 4), stride=2, padding=1, groups=x.shape[1])


def parts(p: Arrays, style: Array) -> tuple[Array, Array]:
    """The weight, scaled by its number of inputs, and the factors of the input channels."""
    weight = p["weight"]
    return weight / math.sqrt(math.prod(weight.shape[1:])), linear(p, "style", style) + 1


def layer(
    setting: Setting, p: Arrays, x: Array, style: Array, noise: Array, *, doubles: bool
) -> Array:
    weight, scale = parts(p, style)
    y = x * scale[:, :, None, None]
    if doubles:
        y = rows(setting, convolve_transposed(y, weight, stride=2))
        y = smooth(y, padding=1, gain=4)
    else:
        y = convolve(y, weight, padding=1)
    power = jnp.einsum("oikl,bi->bo", jnp.square(weight), jnp.square(scale))
    y = y * lax.rsqrt(power + 1e-8)[:, :, None, None]
    return rows(setting, activate(y + noise * p["strength"], p["bias"]))


def to_rgb(setting: Setting, p: Arrays, x: Array, style: Array) -> Array:
    weight, scale = parts(p, style)
    y = convolve(x * scale[:, :, None, None], weight)
    return rows(setting, y + p["bias"][:, None, None])


def count(p: Arrays, name: str) -> int:
    """How many members a list of modules has."""
    return 1 + max(int(n.split(".")[1]) for n in p if n.startswith(name + "."))


def generate(setting: Setting, p: Arrays, z: Array, noise: Arrays) -> Array:
    style = z
    for i in range(count(p, "mapping")):
        style = jax.nn.leaky_relu(linear(p, f"mapping.{i}", style), 0.2)
    x = jnp.broadcast_to(p["start"], (z.shape[0], *p["start"].shape))
    x = layer(setting, within("same.0", p), x, style, noise["0.0"], doubles=False)
    image = to_rgb(setting, within("rgb.0", p), x, style)
    for i in range(1, count(p, "same")):
        grow, same, rgb = (within(n, p) for n in (f"grow.{i - 1}", f"same.{i}", f"rgb.{i}"))
        x = layer(setting, grow, x, style, noise[f"{i}.0"], doubles=True)
        x = layer(setting, same, x, style, noise[f"{i}.1"], doubles=False)
        image = rows(setting, twice(image) + to_rgb(setting, rgb, x, style))
    return image


def convolution(p: Arrays, name: str, x: Array, *, padding: int, stride: int = 1) -> Array:
    y = convolve(x, p[f"{name}.weight"], padding=padding, stride=stride)
    return activate(y, p[f"{name}.bias"])


def halve(setting: Setting, p: Arrays, x: Array) -> Array:
    """A residual block to half as many rows and columns."""
    y = rows(setting, convolution(p, "same", x, padding=1))
    y = rows(setting, convolution(p, "down", smooth(y, padding=2), padding=0, stride=2))
    skip = convolve(smooth(x, padding=1, stride=2), p["skip.weight"])
    return rows(setting, (y + skip) * math.sqrt(0.5))


def judge(setting: Setting, p: Arrays, image: Array) -> Array:
    x = rows(setting, convolution(p, "rgb", image, padding=0))
    for i in range(count(p, "blocks")):
        x = halve(setting, within(f"blocks.{i}", p), x)
    spread = jnp.sqrt(jnp.square(x - x.mean(0)).mean(0) + 1e-8).mean()
    x = jnp.concatenate([x, jnp.broadcast_to(spread, (x.shape[0], 1, 4, 4))], 1)
    x = convolution(p, "last", x, padding=1).reshape(x.shape[0], -1)
    return linear(p, "score", jax.nn.leaky_relu(linear(p, "hidden", x), 0.2))[:, 0]


def generator(setting: Setting, p: Arrays, given: Arrays) -> Array:
    image = generate(setting, p, given["z"], within("noise", given))
    return jax.nn.softplus(-judge(setting, within("judge", given), image)).mean()


def discriminator(setting: Setting, p: Arrays, given: Arrays) -> Array:
    def scores(image: Array) -> tuple[Array, Array]:
        score = judge(setting, p, image)
        return score.sum(), score

    slope, score = jax.grad(scores, has_aux=True)(given["real"])
    penalty = jnp.square(slope).sum((1, 2, 3)).mean()
    fake = jax.nn.softplus(judge(setting, p, given["fake"]))
    return (fake + jax.nn.softplus(-score)).mean() + 5 * penalty
