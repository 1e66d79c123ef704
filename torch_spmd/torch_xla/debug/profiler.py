# SPDX-License-Identifier: Apache-2.0
"""Scopes of a trace, as PyTorch's profiler records them. There is no profiling server."""

from __future__ import annotations

import functools
from collections.abc import Callable
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
