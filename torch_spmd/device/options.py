# SPDX-License-Identifier: Apache-2.0
"""Settings of the process that may change while it runs (csrc/util/options.h)."""

from __future__ import annotations

import contextlib
import re
from typing import Any

from torch_spmd import _C, _arguments

NAMES = tuple(name for name in vars(_C.Options) if not name.startswith("_"))
MEMORY_LIMIT = "memory_limit"
_THREE = ("turns",)  # which may be None, too
_TEXTS = ("dump",)

_UNITS = {
    "": 1, "b": 1, "kb": 10**3, "mb": 10**6, "gb": 10**9, "tb": 10**12,
    "kib": 2**10, "mib": 2**20, "gib": 2**30, "tib": 2**40,
}  # fmt: skip


class _Unchanged:
    def __repr__(self) -> str:
        return "unchanged"


UNCHANGED: Any = _Unchanged()


class _Update(contextlib.AbstractContextManager[None]):
    """Restores the settings at the end of a block."""

    def __init__(self, before: _C.Options) -> None:
        self._before = before  # the limit of memory is one of them

    def __exit__(self, *error: object) -> None:
        _C.set_options(self._before)


def update(
    *,
    memory_limit: str | int | None = UNCHANGED,
    coalesce: bool = UNCHANGED,
    deduplicate: bool = UNCHANGED,
    turns: bool | None = UNCHANGED,
    one_place: bool = UNCHANGED,
    replay: bool = UNCHANGED,
    verify: bool = UNCHANGED,
    dump: str = UNCHANGED,
    **for_tests: bool,
) -> contextlib.AbstractContextManager[None]:
    """Changes settings, for all that is compiled or run from now on. In a `with` statement they are
    as they were when the block ends.

    What is pending runs with the settings that hold when it is compiled. All but `memory_limit`
    have an environment variable: `coalesce=False` is `SPMD_COALESCE=0`, and `turns=None` is as if
    `SPMD_TURNS` were not set.

    Args:
        memory_limit: the memory that a program may need, per device: bytes, or text such as
            "12GiB", "512 MiB" or "1.5GB"; None is what the device has, the default. Where a program
            needs more, gathered values are gathered again for their later uses, and results of
            element-wise ops computed again, with a warning; `debug.memory()` and
            `debug.explain_compile()` say what that costs. If it does not fit even so, running it
            raises `OutOfMemoryError`. Virtual devices on the CPU have no limit of their own.
        coalesce: whether devices that share memory run as one (the default) or tile by tile. If
            so, an op over eight shards of a batch is one call. Results differ only in the order of
            sums. Collectives and memory are reported for the devices in either case.
        deduplicate: whether replicas share one tile and are computed once (the default). False is
            for timing the full work.
        turns: whether devices that share memory take turns: True, False, or None where it saves
            memory.
        one_place: False does nothing that only devices on one CPU can do.
        replay: whether repeated calls are replayed and not recorded again.
        verify: whether each program runs a second time, unsharded, and is compared.
        dump: a file to which graphs and programs are appended; "" for none.
        for_tests: `check_passes` and `price_moves`, whose variables are for tests.

    Errors:
        TypeError: a value of another kind.
        ValueError: there is no such setting; a limit of another form, or less than 1 byte.

    Example:
        >>> import torch_spmd as spmd
        >>> with spmd.config.update(coalesce=False, memory_limit="12GiB"):
        ...     spmd.config.current()["coalesce"], spmd.config.current()["memory_limit"]
        (False, 12884901888)
    """
    given = {
        "coalesce": coalesce,
        "deduplicate": deduplicate,
        "turns": turns,
        "one_place": one_place,
        "replay": replay,
        "verify": verify,
        "dump": dump,
        **for_tests,
    }
    before, options, limit = _C.options(), _C.options(), _C.memory_limit()
    for name, value in given.items():
        if name not in NAMES:
            there = ", ".join(sorted([*NAMES, MEMORY_LIMIT]))
            raise ValueError(f"config.update: there is no setting {name!r}; there are {there}")
        if value is not UNCHANGED:
            setattr(options, name, _checked(name, value))
    if memory_limit is not UNCHANGED:
        limit = 0 if memory_limit is None else _bytes(memory_limit)
    _C.set_options(options)
    _C.set_memory_limit(limit)
    return _Update(before)


def current() -> dict[str, Any]:
    """The settings that hold now, by name.

    Example:
        >>> import torch_spmd as spmd
        >>> spmd.config.current()["replay"]
        True
    """
    options = _C.options()
    limit = _C.memory_limit() or None
    return {name: getattr(options, name) for name in NAMES} | {MEMORY_LIMIT: limit}


def _checked(name: str, value: Any) -> Any:
    if name in _TEXTS:
        return _arguments.text("config.update", name, value) if value != "" else ""
    if value is None and name in _THREE:
        return None
    return _arguments.boolean("config.update", name, value)


def _bytes(limit: Any) -> int:
    name = MEMORY_LIMIT
    if not isinstance(limit, str):
        if isinstance(limit, bool):
            raise TypeError(f"config.update: {name} must be bytes or text, not {limit}")
        return _arguments.integer("config.update", name, limit, 1)
    text = _arguments.text("config.update", name, limit)
    match = re.fullmatch(r"\s*(\d{1,18}(?:\.\d{1,18})?)\s*([kmgt]?i?b|)\s*", text, re.I | re.A)
    if match is None or match[2].lower() not in _UNITS:
        raise ValueError(
            f"config.update: {name} is {_arguments.shown(text)}, not a number of bytes such as "
            '"12GiB", "512 MiB", "1.5GB" or 2**30'
        )
    count = int(float(match[1]) * _UNITS[match[2].lower()])
    return _arguments.integer("config.update", name, count, 1)
