# SPDX-License-Identifier: Apache-2.0
"""A training step in JAX from a workload's description (`described.py`)."""

from __future__ import annotations

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax import Array
from jax.sharding import AxisType, Mesh, NamedSharding, PartitionSpec
from jax.stages import Lowered

from benchmarks.peers.models import LOSSES
from benchmarks.peers.models.common import Arrays, Setting

# JAX has no 64-bit numbers unless told to.
TYPES = {"float32": jnp.float32, "int64": jnp.int32}
State = tuple[Arrays, list[Arrays], Array]


def mesh_of(axes: dict[str, int]) -> Mesh:
    sizes = tuple(axes.values())
    devices = np.array(jax.devices()[: int(np.prod(sizes))]).reshape(sizes)
    return Mesh(devices, tuple(axes), axis_types=(AxisType.Auto,) * len(axes))


def argument(mesh: Mesh, leaf: dict[str, Any]) -> jax.ShapeDtypeStruct:
    spec = [tuple(entry) if isinstance(entry, list) else entry for entry in leaf["spec"]]
    return jax.ShapeDtypeStruct(
        leaf["shape"],
        TYPES[leaf["dtype"]],
        sharding=NamedSharding(mesh, PartitionSpec(*spec)),
    )


def sgd(options: dict[str, Any], state: State, slopes: Arrays) -> State:
    parameters, moments, steps = state
    new = {name: p - options["lr"] * slopes[name] for name, p in parameters.items()}
    return new, moments, steps


def adamw(options: dict[str, Any], state: State, slopes: Arrays) -> State:
    parameters, (means, squares), steps = state
    beta1, beta2 = options["betas"]
    steps = steps + 1
    means = {n: beta1 * m + (1 - beta1) * slopes[n] for n, m in means.items()}
    squares = {n: beta2 * s + (1 - beta2) * jnp.square(slopes[n]) for n, s in squares.items()}
    kept = 1 - options["lr"] * options["weight_decay"]
    rate = options["lr"] / (1 - beta1**steps)
    correction = jnp.sqrt(1 - beta2**steps)
    new = {
        n: p * kept - rate * means[n] / (jnp.sqrt(squares[n]) / correction + options["eps"])
        for n, p in parameters.items()
    }
    return new, [means, squares], steps


def arguments(description: dict[str, Any]) -> tuple[Any, dict[str, jax.ShapeDtypeStruct]]:
    """Shapes and shardings of the state and of the inputs."""
    mesh = mesh_of(description["mesh"])

    def of(leaves: dict[str, Any]) -> dict[str, jax.ShapeDtypeStruct]:
        return {name: argument(mesh, leaf) for name, leaf in leaves.items()}

    number = argument(mesh, {"shape": [], "dtype": "int64", "spec": []})
    moments = [of(moment) for moment in description["moments"]]
    return (of(description["parameters"]), moments, number), of(description["inputs"])


def lower(workload: str, annotated: bool, description: dict[str, Any]) -> Lowered:
    """The step to StableHLO. Parameters and moments are donated and keep their shardings."""
    setting = Setting(mesh_of(description["mesh"]), annotated, description["sizes"])
    options = description["optimizer"]
    update = adamw if description["moments"] else sgd

    def step(state: State, inputs: Arrays) -> tuple[State, Array]:
        def loss(parameters: Arrays) -> Array:
            return LOSSES[workload](setting, parameters, inputs)

        value, slopes = jax.value_and_grad(loss)(state[0])
        return update(options, state, slopes), value

    state, inputs = arguments(description)
    kept = jax.tree.map(lambda a: a.sharding, state)
    compiled = jax.jit(step, donate_argnums=0, out_shardings=(kept, state[2].sharding))
    return compiled.lower(state, inputs)
