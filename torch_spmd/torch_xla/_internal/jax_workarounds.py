# SPDX-License-Identifier: Apache-2.0
"""What scripts call around their use of JAX. Nothing of a device is JAX's here."""

from __future__ import annotations

import functools
import importlib
from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext
from typing import Any


def jax_import_guard() -> None:
    """Does nothing: this device does not lock what JAX would use."""


def jax_env_context() -> AbstractContextManager[None]:
    """A context without effect."""
    return nullcontext()


def requires_jax(func: Callable[..., Any]) -> Callable[..., Any]:
    """The function, as it is."""

    @functools.wraps(func)
    def wrapper(*args: Any, **kwargs: Any) -> Any:
        return func(*args, **kwargs)

    return wrapper


def maybe_get_jax(log: bool = True) -> Any:
    """The module jax where it is installed, else None."""
    try:
        return importlib.import_module("jax")
    except ImportError:
        return None


def maybe_get_torchax() -> Any:
    """The module torchax where it is installed, else None."""
    try:
        return importlib.import_module("torchax")
    except ImportError:
        return None
