# SPDX-License-Identifier: Apache-2.0
"""benchmarks/workloads/mlp.py in JAX."""

import jax
import jax.numpy as jnp
from jax import Array

from benchmarks.peers.models.common import Arrays, Setting, linear


def loss(setting: Setting, p: Arrays, given: Arrays) -> Array:
    h = given["x"]
    for block in range(len(p) // 2):
        up = setting.mark(jax.nn.relu(linear(p, f"{block}.up", h)), "data", "model")
        h = setting.mark(linear(p, f"{block}.down", up), "data", None)
    return jnp.square(h - given["y"]).mean()
