# SPDX-License-Identifier: Apache-2.0
"""Ways to run the same tests. What is different is options, in this process and those it starts."""

from __future__ import annotations

import contextlib
import os
from collections.abc import Iterator, Mapping

# Tile by tile, as devices with memory of their own would run: what most tests are about. Devices
# take turns even where tensors are too small for that to pay.
TILES = {"coalesce": False, "turns": True}

MODES: dict[str, Mapping[str, bool | None]] = {
    "tiles": {},
    # As users have it: devices that share a place run as one, a few groups take turns where that
    # saves much memory.
    "coalesced": {"coalesce": True, "turns": None},
    # The same, and groups take turns wherever they can.
    "in_turns": {"coalesce": True, "turns": True},
    # Moves are free for the planner, so whatever a rule lets be cut is cut.
    "free_moves": {"price_moves": False},
    # Each program runs a second time, unsharded.
    "verified": {"verify": True},
}


def as_variables(options: Mapping[str, bool | None]) -> dict[str, str]:
    """The environment variables that say the same: `{"SPMD_COALESCE": "0"}`. Empty: not set."""
    text = {None: "", False: "0", True: "1"}
    return {f"SPMD_{name.upper()}": text[value] for name, value in options.items()}


@contextlib.contextmanager
def in_mode(name: str) -> Iterator[None]:
    """Within it, programs of this process and of those that it starts run in a mode."""
    from torch_spmd.device import options as _options

    before = dict(os.environ)
    os.environ.update(as_variables(MODES[name]))
    try:
        with _options.update(**MODES[name]):
            yield
    finally:
        for variable in as_variables(MODES[name]):
            if variable in before:
                os.environ[variable] = before[variable]
            else:
                del os.environ[variable]
