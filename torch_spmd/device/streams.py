# SPDX-License-Identifier: Apache-2.0
"""Streams and events of `torch.spmd`. The device has one stream: the tape orders all work."""

from __future__ import annotations

from typing import Any

import torch


class Stream(torch.Stream):
    """The device's one stream. Work of every Stream is in the order in which Python records it."""

    def __new__(cls, device: Any = None, priority: int = 0, **fields: Any) -> Stream:
        if "stream_id" in fields:  # another Stream's
            return super().__new__(cls, **fields)
        return super().__new__(cls, device="spmd", priority=priority)

    def wait_event(self, event: Any) -> None:
        """Nothing is waited for: all work is in one order."""

    def wait_stream(self, stream: Any) -> None:
        """Nothing is waited for: all work is in one order."""


def make_event(
    enable_timing: bool = False, blocking: bool = False, interprocess: bool = False
) -> torch.Event:
    """A point in the order of work. `record` runs what is pending; an event with `enable_timing`
    also waits until it has run, and notes the time."""
    if interprocess:
        raise NotImplementedError(
            "torch.spmd.Event: interprocess events are not supported, since the device's memory "
            "belongs to one process"
        )
    return torch.Event("spmd", enable_timing=enable_timing)
