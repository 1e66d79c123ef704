# SPDX-License-Identifier: Apache-2.0
"""Eager mode: remembered. Values are the same in either mode, and ops are recorded in both."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator

_eager = False


def eager_mode(enable: bool) -> None:
    global _eager
    _eager = enable


def is_eager_mode() -> bool:
    return _eager


@contextlib.contextmanager
def eager_mode_context(enable: bool) -> Iterator[None]:
    before = _eager
    eager_mode(enable)
    try:
        yield
    finally:
        eager_mode(before)
