# SPDX-License-Identifier: Apache-2.0
"""XLA's side, on SPMD_PEERS_DEVICES virtual CPU devices. Needs JAX, and neither
PyTorch nor torch_spmd."""

from __future__ import annotations

import os
from collections.abc import Callable
from typing import Any

from benchmarks.peers.conversation import Message, serve
from benchmarks.peers.steps.rows import CASES, LAUNCHES, PER_DEVICE, Case
from benchmarks.peers.steps.timed import timed

steps: list[Callable[[], None]] = []


def greet() -> Message:
    """The version of JAX, or why it cannot be used."""
    devices = os.environ["SPMD_PEERS_DEVICES"]
    os.environ |= {
        "JAX_PLATFORMS": "cpu",
        "XLA_FLAGS": f"--xla_force_host_platform_device_count={devices}",
    }
    try:
        import jax
        import jaxlib
    except ImportError as error:
        return {"missing": str(error)}
    return {"jax": jax.__version__, "jaxlib": jaxlib.__version__}


def training(workload: str, description: dict[str, Any]) -> Callable[[], None]:
    """Numbers from which a step can start; they influence neither time nor memory."""
    import jax
    import numpy as np

    from benchmarks.peers.step import arguments, lower

    random = np.random.default_rng(0)

    def number(a: jax.ShapeDtypeStruct) -> jax.Array:
        if a.shape == ():
            made = np.zeros((), a.dtype)
        elif np.issubdtype(a.dtype, np.integer):
            made = random.integers(1000, size=a.shape, dtype=a.dtype)
        else:
            made = abs(0.02 * random.standard_normal(a.shape, a.dtype))
        return jax.device_put(made, a.sharding)

    compiled = lower(workload, False, description).compile()
    held = [jax.tree.map(number, tree) for tree in arguments(description)]

    def step() -> None:
        held[0], loss = compiled(*held)
        jax.block_until_ready((held[0], loss))

    return step


def launches(devices: int) -> Callable[[], None]:
    import jax
    import numpy as np
    from jax.sharding import NamedSharding, PartitionSpec

    from benchmarks.peers.step import mesh_of

    cut = NamedSharding(mesh_of({"data": devices}), PartitionSpec("data"))
    add = jax.jit(lambda x: x + 1, donate_argnums=0, out_shardings=cut)
    held = jax.device_put(np.zeros(devices * PER_DEVICE, np.float32), cut)

    def step() -> None:
        nonlocal held
        for _ in range(LAUNCHES):
            held = add(held)
        held.block_until_ready()

    return step


def make(case: Case, description: dict[str, Any] | None) -> None:
    if case.workload is None:
        steps[:] = [launches(case.devices)]
    else:
        assert description is not None
        steps[:] = [training(case.workload, description)]


def answer(*, row: str | None = None, description: dict[str, Any] | None = None) -> Message:
    """Creates a row, or times one step of it."""
    if row is not None:
        make(CASES[row], description)
        return {}
    return timed(steps[0])


if __name__ == "__main__":
    serve(greet, answer)
