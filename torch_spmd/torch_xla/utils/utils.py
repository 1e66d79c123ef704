# SPDX-License-Identifier: Apache-2.0
"""Helpers that scripts use: generated samples, environment variables."""

from __future__ import annotations

import os
from collections.abc import Callable
from typing import Any


class SampleGenerator:
    """Yields the same sample `sample_count` times."""

    def __init__(self, data: Any, sample_count: int) -> None:
        self._data = data
        self._sample_count = sample_count
        self._count = 0

    def __iter__(self) -> SampleGenerator:
        return SampleGenerator(self._data, self._sample_count)

    def __len__(self) -> int:
        return self._sample_count

    def __next__(self) -> Any:
        if self._count >= self._sample_count:
            raise StopIteration
        self._count += 1
        return self._data

    next = __next__


def getenv_as(name: str, type: Callable[[Any], Any], defval: Any = None) -> Any:
    """An environment variable as another type: "0", "" and "false" are False."""
    value = os.environ.get(name)
    if value is None:
        return defval
    if type is bool:
        return value.lower() not in ("", "0", "false", "no", "off")
    return type(value)


def check_env_flag(name: str, default: str = "") -> bool:
    return os.environ.get(name, default).upper() in ("ON", "1", "YES", "TRUE", "Y")


def eprint(*args: Any) -> None:
    import sys

    print(*args, file=sys.stderr)


def timed(function: Callable[[], Any], msg: str = "", printfn: Any = eprint) -> Any:
    import time

    start = time.time()
    result = function()
    printfn(f"{msg}{time.time() - start:.3f}s")
    return result
