# SPDX-License-Identifier: Apache-2.0
"""PyTorch's profiler shows programs and their instructions (csrc/runtime/observers.h).

Programs run while Python goes on. A profile ends behind those that were begun within it, which
write into what it has collected.
"""

from __future__ import annotations

import functools
import sys
import threading
from typing import Any

import torch

from torch_spmd import _C
from torch_spmd._replace import replace

_thread = threading.local()


def install() -> None:
    """Called once."""
    profile: Any = torch.autograd.profiler.profile
    end = profile.__exit__

    @functools.wraps(end)
    def ended(self: Any, *error: Any) -> Any:
        if not self.enabled:
            return end(self, *error)
        failed = _wait()
        _thread.has_waited = True
        try:
            result = end(self, *error)
        finally:
            _thread.has_waited = False
        # What fails in a program of the profile is raised here, but not in the place of an error
        # that ends it, and not before the profile has ended.
        if failed is not None and not any(error):
            raise failed
        return result

    why = "a profile ends behind the programs that it shows, which still write into it"
    replace(profile, "__exit__", ended, why)


def has_waited() -> bool:
    """Whether the profiler, which synchronizes the device, has waited for it already."""
    return getattr(_thread, "has_waited", False)


def _wait() -> BaseException | None:
    """Runs what is pending, and waits for it. In a job of several processes of which only some may
    have a profiler, only what has been begun is waited for."""
    try:
        if "torch_spmd.processes.job" in sys.modules and _C.process()[1] > 1:
            _C.wait_for_programs()
        else:
            _C.sync(True)
    except BaseException as error:
        return error
    return None
