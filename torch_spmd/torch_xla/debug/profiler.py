# SPDX-License-Identifier: Apache-2.0
"""Scopes and traces, as PyTorch's profiler records them. There is no profiling server."""

from __future__ import annotations

import functools
import os
import warnings
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch

from torch_spmd import torch_xla

_marked_step = False


def set_tracer_marked_step(value: bool) -> None:
    global _marked_step
    _marked_step = value


def get_tracer_marked_step() -> bool:
    return _marked_step


def start_server(port: int, only_on_master: bool = True) -> object:
    """An object that stands for the server; nothing listens. Use torch.profiler, or
    spmd.debug.trace_to_chrome."""
    return object()


_running: tuple[Any, Path] | None = None  # the profiler and its folder


def start_trace(log_dir: str | os.PathLike[str]) -> None:
    """Starts PyTorch's profiler; `stop_trace` writes what it recorded to `log_dir`.

    Errors: RuntimeError if it has been started.
    """
    global _running
    if _running is not None:
        raise RuntimeError(
            "Profile has already been started. Only one profile may be run at a time."
        )
    profile = torch.profiler.profile(activities=[torch.profiler.ProfilerActivity.CPU])
    profile.start()
    _running = profile, Path(log_dir)


def stop_trace() -> None:
    """Waits for what runs, and writes "trace.json" (for chrome://tracing or Perfetto).

    Errors: RuntimeError if no trace was started.
    """
    global _running
    if _running is None:
        raise RuntimeError("No profile started")
    (profile, folder), _running = _running, None
    torch_xla.sync(wait=True)
    profile.stop()
    folder.mkdir(parents=True, exist_ok=True)
    profile.export_chrome_trace(str(folder / "trace.json"))


def trace(service_addr: str, logdir: str, *args: Any, **kwargs: Any) -> None:
    """Errors: RuntimeError: there is no server; `start_trace` and `stop_trace` record here."""
    raise RuntimeError(
        f"profiler.trace: {service_addr!r} is no server of torch_spmd's, which has none; call "
        "start_trace(logdir) and stop_trace() around the steps"
    )


def trace_detached(service_addr: str, logdir: str, *args: Any, **kwargs: Any) -> None:
    """Warns that nothing is recorded, since there is no server; a script goes on."""
    warnings.warn(
        f"profiler.trace_detached: nothing is written to {logdir!r}, since there is no profiling "
        "server; call start_trace(logdir) and stop_trace() around the steps",
        stacklevel=2,
    )


class Trace:
    """A named scope: `torch.profiler.record_function`."""

    def __init__(self, name: str, **kwargs: Any) -> None:
        self._scope = torch.profiler.record_function(name)

    def __enter__(self) -> Trace:
        self._scope.__enter__()
        return self

    def __exit__(self, *error: Any) -> None:
        self._scope.__exit__(*error)


class StepTrace(Trace):
    """A scope at whose end what is pending runs."""

    def __exit__(self, *error: Any) -> None:
        if error[0] is None:
            torch_xla.sync()
            set_tracer_marked_step(True)
        super().__exit__(*error)


def trace_me(scope: str) -> Callable[[Any], Any]:
    def decorate(function: Any) -> Any:
        @functools.wraps(function)
        def scoped(*args: Any, **kwargs: Any) -> Any:
            with Trace(scope):
                return function(*args, **kwargs)

        return scoped

    return decorate
