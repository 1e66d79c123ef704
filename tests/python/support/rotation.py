# SPDX-License-Identifier: Apache-2.0
"""Which part of what is too much for one run is tested: another one with every commit.

`pytest --parts=12` runs a twelfth of the tests that are marked `in_parts` and of those in other
modes, and some samples of each op. Without it everything that is not behind a `--full-…` runs.
"""

from __future__ import annotations

import os
import subprocess
import zlib
from collections.abc import Sequence
from pathlib import Path
from typing import TypeVar

Item = TypeVar("Item")

_PARTS, _TURN = "TORCH_SPMD_TEST_PARTS", "TORCH_SPMD_TEST_TURN"


def configure(parts: int, turn: int | None) -> None:
    """Sets how many parts there are, and which of them is tested: by the commit if None.

    In the environment, where processes that share the tests among them find it.
    """
    os.environ[_PARTS] = str(parts)
    if turn is not None:
        os.environ[_TURN] = str(turn)
    elif _TURN not in os.environ:
        os.environ[_TURN] = str(_commit())


def parts() -> int:
    return int(os.environ.get(_PARTS, 1))


def turn() -> int:
    return int(os.environ.get(_TURN, 0))


def place(name: str, among: int) -> int:
    """A number below `among` that depends on the name alone, so that another version of PyTorch,
    with more ops or fewer, tests the others in the same way."""
    return zlib.crc32(name.encode()) % among


def is_chosen(name: str) -> bool:
    """Whether what has this name is in the part that is tested."""
    return (zlib.crc32(name.encode()) + turn()) % parts() == 0


def is_chosen_within(name: str) -> bool:
    """The same for parts of what may itself be in parts: each time that is tested, it is with
    another one of its parts."""
    return (zlib.crc32(name.encode()) + _turn_within()) % parts() == 0


def some(items: Sequence[Item], among: int = 4) -> list[Item]:
    """One in `among` of the items, others with each commit, and at least one; all if all parts are
    tested."""
    among = min(among, len(items), parts())
    return [item for i, item in enumerate(items) if among == 1 or (i + _turn_within()) % among == 0]


def _turn_within() -> int:
    return turn() + turn() // parts()


def _commit() -> int:
    """How many commits lead to this one, so that consecutive ones test different parts.

    Where the history is not there (a shallow clone), a number from the hash; 0 if there is no
    repository.
    """
    if _git("rev-parse", "--is-shallow-repository") == "false":
        return int(_git("rev-list", "--count", "--first-parent", "HEAD") or 0)
    return int(_git("rev-parse", "--short=7", "HEAD") or "0", 16)


def _git(*arguments: str) -> str:
    """What `git` says; "" if there is no git, or no repository."""
    try:
        where = Path(__file__).parent
        done = subprocess.run(["git", *arguments], cwd=where, capture_output=True, text=True)
    except OSError:
        return ""
    return done.stdout.strip() if done.returncode == 0 else ""
