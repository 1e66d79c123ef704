# SPDX-License-Identifier: Apache-2.0
"""Streams and events of `torch.spmd`. The device has one stream: the tape orders all work."""

from __future__ import annotations

import time
from typing import Any

import torch

from torch_spmd import _C


class Stream(torch.Stream):
    """The device's one stream. Work of every Stream is in the order in which Python records it."""

    def __new__(cls, device: Any = None, priority: int = 0, **fields: Any) -> Stream:
        if "stream_id" in fields:  # another Stream's
            return super().__new__(cls, **fields)
        return super().__new__(cls, device="spmd", priority=priority)

    def record_event(self, event: Any = None) -> Any:
        event = Event() if event is None else event
        event.record(self)
        return event

    def wait_event(self, event: Any) -> None:
        """Nothing is waited for: all work is in one order."""

    def wait_stream(self, stream: Any) -> None:
        """Nothing is waited for: all work is in one order."""


class Event(torch.Event):
    """A point in the order of work. `record` runs what is pending; an event with `enable_timing`
    also waits until it has run, and notes the time."""

    _seconds: float | None
    _timed: bool

    def __new__(
        cls, enable_timing: bool = False, blocking: bool = False, interprocess: bool = False
    ) -> Event:
        if interprocess:
            raise NotImplementedError(
                "torch.spmd.Event: interprocess events are not supported, since the device's "
                "memory belongs to one process"
            )
        event = super().__new__(cls, device="spmd", enable_timing=enable_timing)
        event._seconds = None
        event._timed = enable_timing
        return event

    def record(self, stream: Any = None) -> None:
        _C.sync(self._timed)
        if self._timed:
            self._seconds = time.perf_counter()

    def wait(self, stream: Any = None) -> None:
        """Nothing is waited for: later work is behind it in the one stream."""

    def query(self) -> bool:
        """True; what the event stands behind is run first."""
        self.synchronize()
        return True

    def synchronize(self) -> None:
        _C.sync(True)

    def elapsed_time(self, end_event: Any) -> float:
        """Milliseconds from this event to the other."""
        for event in (self, end_event):
            if getattr(event, "_seconds", None) is None:
                raise RuntimeError(
                    "torch.spmd.Event.elapsed_time: both events must be recorded, and made with "
                    "enable_timing=True"
                )
        return (end_event._seconds - self._seconds) * 1e3
