# SPDX-License-Identifier: Apache-2.0
"""Counters and metrics: those of torch_xla's names that can be true here."""

from __future__ import annotations

from collections.abc import Sequence

from torch_spmd.torch_xla import _counts


def counter_names() -> list[str]:
    return list(_counts.counter_values())


def counter_value(name: str) -> int | None:
    """None for a counter that has not counted."""
    return _counts.counter_values().get(name)


def metric_names() -> list[str]:
    names = list(_counts.sample_values())
    return names + ["TransferToDeviceTime"] if "OutboundData" in names else names


def metric_data(name: str) -> tuple[int, float, tuple[tuple[float, float], ...]] | None:
    """(number of samples, their sum, (time, value) of each); None if there is none.

    The times of samples are not kept and are 0. Executions and transfers are counted but not
    timed: their values are nan.
    """
    samples = _counts.sample_values()
    values = samples.get(name)
    if name == "TransferToDeviceTime" and "OutboundData" in samples:
        values = [float("nan")] * len(samples["OutboundData"])
    if name == "TransferFromDeviceTime" and "InboundData" in samples:
        values = [float("nan")] * len(samples["InboundData"])
    if not values:
        return None
    return len(values), sum(values), tuple((0.0, value) for value in values)


def clear_counters() -> None:
    _counts.clear_counters()


def clear_metrics() -> None:
    _counts.clear_samples()


def clear_all() -> None:
    clear_counters()
    clear_metrics()


def metrics_report() -> str:
    """All of them as text."""
    return short_metrics_report(counter_names(), metric_names())


def short_metrics_report(
    counter_names: Sequence[str] | None = None, metric_names: Sequence[str] | None = None
) -> str:
    """Some of them as text; by default compilations, executions and ops on host copies."""
    if counter_names is None:
        counter_names = ["CachedCompile", "HostFallback", "UncachedCompile"]
    if metric_names is None:
        metric_names = ["CompileTime", "ExecuteReplicatedTime"]
    lines = []
    for name in metric_names:
        if data := metric_data(name):
            lines += [f"Metric: {name}", f"  TotalSamples: {data[0]}", f"  Accumulator: {data[1]}"]
    for name in counter_names:
        if (value := counter_value(name)) is not None:
            lines += [f"Counter: {name}", f"  Value: {value}"]
    return "\n".join(lines) + "\n"


def executed_fallback_ops() -> list[str]:
    """Names are not kept, so this is empty; the counter HostFallback has their number."""
    return []
