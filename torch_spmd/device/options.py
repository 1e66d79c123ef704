# SPDX-License-Identifier: Apache-2.0
"""The options of the process (csrc/util/options.h) that may change while it runs: for tests."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator

from torch_spmd import _C

NAMES = tuple(name for name in vars(_C.Options) if not name.startswith("_"))


def set_options(**changes: bool | str | None) -> None:
    """Changes options for all that is compiled or run from now on.

    Each has the name and the values of its variable: `coalesce=False` is `SPMD_COALESCE=0`, and
    `turns=None` is as if `SPMD_TURNS` were not set. What is pending runs with the options that
    hold when it is compiled.

    Raises:
        ValueError: if there is no such option.
    """
    options = _C.options()
    for name, value in changes.items():
        if name not in NAMES:
            raise ValueError(f"there is no option {name!r}; there are {', '.join(sorted(NAMES))}")
        setattr(options, name, value)
    _C.set_options(options)


@contextlib.contextmanager
def options(**changes: bool | str | None) -> Iterator[None]:
    """Within it the options are changed as by `set_options`; afterwards all are as they were.

    Example:
        >>> from torch_spmd import _C
        >>> from torch_spmd.device import options
        >>> with options.options(coalesce=False, turns=True):
        ...     _C.options().coalesce, _C.options().turns
        (False, True)
    """
    before = _C.options()
    try:
        set_options(**changes)
        yield
    finally:
        _C.set_options(before)
