# SPDX-License-Identifier: Apache-2.0
"""XLA's side, on virtual CPU devices. Needs JAX, and neither PyTorch nor torch_spmd.

XLA logs how long every pass took; that is read from the process's standard error.
"""

from __future__ import annotations

import os
import re
import tempfile
import time
from typing import Any

from benchmarks.peers import hlo
from benchmarks.peers.conversation import Message, serve

DEVICES = 8
SWITCH = "jax_use_shardy_partitioner"
# Passes that decide shardings, and passes that rewrite the program for one device.
PLANNING = ("shardy-xla", "sharding-propagation", "spmd-partitioning")
PASS = re.compile(r"HLO pass: (\S+) time: .*?\((\d+) us\) \(cumulative")
errors = tempfile.TemporaryFile()  # noqa: SIM115 (lives as long as the process)


def greet() -> Message:
    """The version of JAX and its partitioners, or why JAX cannot be used."""
    os.environ |= {
        "JAX_PLATFORMS": "cpu",
        "TF_CPP_MIN_LOG_LEVEL": "0",
        "TF_CPP_VMODULE": "hlo_pass_pipeline=1",
        "XLA_FLAGS": f"--xla_force_host_platform_device_count={DEVICES}",
    }
    try:
        import jax
        import jaxlib
    except ImportError as error:
        return {"missing": str(error)}
    os.dup2(errors.fileno(), 2)
    jax.jit(abs).lower(1.0).compile()  # what is set up once per process
    partitioners = ["gspmd", "shardy"] if hasattr(jax.config, SWITCH) else ["shardy"]
    return {"jax": jax.__version__, "jaxlib": jaxlib.__version__, "partitioners": partitioners}


def planning_seconds() -> float:
    """The times of the passes that were logged since the last call."""
    log = os.pread(2, os.fstat(2).st_size, 0).decode(errors="replace")
    os.ftruncate(2, 0)
    os.lseek(2, 0, os.SEEK_SET)
    times = (int(us) for name, us in PASS.findall(log) if name in PLANNING)
    return sum(times) / 1e6


def answer(
    workload: str, annotated: bool, partitioner: str, description: dict[str, Any]
) -> Message:
    """CPU-seconds of all threads to lower and to compile; of the latter, the wall time of the
    passes that propagate and partition. Bytes and counts as in `hlo.py`."""
    import jax

    from benchmarks.peers.step import lower

    if hasattr(jax.config, SWITCH):
        jax.config.update(SWITCH, partitioner == "shardy")
    jax.clear_caches()
    start = time.process_time()
    lowered = lower(workload, annotated, description)
    between = time.process_time()
    planning_seconds()
    compiled = lowered.compile()
    end = time.process_time()
    planning = planning_seconds()
    module = hlo.parse(compiled.as_text())
    counts, wire_bytes = hlo.collectives(module, DEVICES)
    return {
        "lower": between - start,
        "compile": end - between,
        "planning": planning,
        "mb": wire_bytes / 1e6,
        "collectives": counts,
        "instructions": hlo.instructions(module),
    }


if __name__ == "__main__":
    serve(greet, answer)
