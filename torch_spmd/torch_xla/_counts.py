# SPDX-License-Identifier: Apache-2.0
"""What the metrics of torch_xla count: programs by the session's own statistics, marks and moves
here."""

from __future__ import annotations

from collections import Counter
from typing import Any

from torch import Tensor
from torch.multiprocessing.reductions import StorageWeakRef

from torch_spmd import _C, _compat

counters: Counter[str] = Counter()
samples: dict[str, list[float]] = {}

# Counters of torch_xla that are statistics of the session.
STATISTICS = {
    "UncachedCompile": "compiles",
    "CachedCompile": "cache_hits",
    "ExecuteReplicated": "runs",
    "HostFallback": "host_fallbacks",
}

# Data that wait, by the address of their storage, which a tensor shares with the Parameter that is
# made of it: how many programs had run when they came, and their bytes.
_waiting: dict[int, tuple[StorageWeakRef, int, int]] = {}
_before: dict[str, int] = {}  # the statistics when the counters were cleared
_first_event = 0  # compilations before it are cleared


def count(name: str, by: int = 1) -> None:
    counters[name] += by


def sample(name: str, value: float) -> None:
    samples.setdefault(name, []).append(value)


def sent(tensor: Any) -> None:
    """Host data became a tensor on the device. It counts as waiting until it is marked, pending
    work reads it, or the next program runs."""
    if isinstance(tensor, Tensor) and tensor.device.type == "spmd":
        held = StorageWeakRef(tensor.untyped_storage())
        _waiting[held.cdata] = (held, _C.statistics()["runs"], tensor.nbytes)


def settle(marked: Tensor | None = None) -> None:
    """Counts the tensor, and those that no longer wait."""
    runs = _C.statistics()["runs"]
    address = None if marked is None or not _waiting else _compat.storage_number(marked)
    for key, (held, before, size) in list(_waiting.items()):
        if held.expired():
            del _waiting[key]
        elif key == address or runs > before or _is_read(held):
            del _waiting[key]
            sample("OutboundData", size)
            count("VirtualDeviceUsage")


def _is_read(held: StorageWeakRef) -> bool:
    storage = _compat.storage_of(held)
    return storage is not None and _C.read_by_pending(storage)


def moved(source: Tensor, result: Tensor) -> None:
    """Counts a copy between the host and the device."""
    to, where = result.device.type, source.device.type
    if to == where:
        return
    if to == "spmd":
        sent(result)
    elif where == "spmd" and to == "cpu":
        sample("InboundData", result.nbytes)
        from torch_spmd.torch_xla import _marks

        # With SPMD every tensor that is not host data still is one of all devices, replicated or
        # not, and its read is counted.
        if _marks.text_of(getattr(source, "global_tensor", source)):
            count("ReplicateShardedData")


def _run_compiled() -> None:
    """Results of compiled functions count as computed when they are returned."""
    from torch_spmd.torch_xla import _compiled

    _compiled.run()


def counter_values() -> dict[str, int]:
    """Every counter that is not 0, by name."""
    _run_compiled()
    settle()
    values = dict(counters)
    now = _C.statistics()
    for name, statistic in STATISTICS.items():
        if more := now[statistic] - _before.get(statistic, 0):
            values[name] = more
    return values


def sample_values() -> dict[str, list[float]]:
    """The samples of every metric that has one. Times are in nanoseconds; an execution is not
    timed, so its samples are nan."""
    _run_compiled()
    settle()
    values = {name: list(given) for name, given in samples.items()}
    events = _C.compile_events()[_first_event:]
    if events:
        values["CompileTime"] = [1e6 * sum(times) for *_, times in map(_times, events)]
    runs = _C.statistics()["runs"] - _before.get("runs", 0)
    if runs:
        values["ExecuteReplicatedTime"] = [float("nan")] * runs
    aliased = [count for count in map(_aliases, _programs()) if count]
    if aliased:
        values["InputOutputAliasCount"] = [float(count) for count in aliased]
    return values


def _times(event: Any) -> tuple[Any, Any]:
    return event[0], event[5:]


def _programs() -> list[Any]:
    numbers = {event[0] for event in _C.compile_events()[_first_event:]}
    return [program for program in _C.programs() if program.number in numbers]


def _aliases(program: Any) -> int:
    """How many results of a program take the place of an input."""
    returned = [line for line in program.traced_text().splitlines() if "return " in line]
    return returned[-1].count("-> %x") if returned else 0


def clear_counters() -> None:
    _run_compiled()
    counters.clear()
    _before.update(_C.statistics())


def clear_samples() -> None:
    global _first_event
    _run_compiled()
    samples.clear()
    _waiting.clear()
    _before["runs"] = _C.statistics()["runs"]
    _first_event = len(_C.compile_events())
