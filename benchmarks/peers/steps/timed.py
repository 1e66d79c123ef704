# SPDX-License-Identifier: Apache-2.0
"""How every side is timed. Needs Python alone."""

from __future__ import annotations

import time
from collections.abc import Callable


def timed(step: Callable[[], None]) -> dict[str, float]:
    """The CPU-seconds of all threads and the wall time of one call."""
    clock, cpu = time.perf_counter(), time.process_time()
    step()
    return {"cpu": time.process_time() - cpu, "clock": time.perf_counter() - clock}
