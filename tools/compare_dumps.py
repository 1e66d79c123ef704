# SPDX-License-Identifier: Apache-2.0
"""Compares what two builds compiled for the same tests.

`pytest --dump FOLDER` writes the graph and the program of each compilation, one file for each test.
A change of the product that should not change programs is made between two such runs:

    pytest tests/python --dump /tmp/before      # the old build
    pytest tests/python --dump /tmp/after       # the new build
    python tools/compare_dumps.py /tmp/before /tmp/after --show 3

Only tests that both folders have are compared. Lines of source are left out (`at "test.py:12"`), so
that a line more in a test is no difference. The status is 1 if a test differs.
"""

from __future__ import annotations

import argparse
import difflib
import re
import sys
from pathlib import Path

SOURCE = re.compile(r' at "[^"]*"')


def compilations(file: Path) -> list[str]:
    """The texts of a file, each a graph with its program, in the order in which they were made."""
    text = SOURCE.sub("", file.read_text(errors="replace"))
    return [part for part in text.split("=== graph\n") if part]


def difference(name: str, old: list[str], new: list[str]) -> list[str]:
    """The lines of the first compilation that differs; none if all are equal."""
    if old == new:
        return []
    for k, (before, after) in enumerate(zip(old, new, strict=False)):
        if before != after:
            title = f"{name}, compilation {k} of {len(old)}"
            lines = before.splitlines(), after.splitlines()
            return list(difflib.unified_diff(lines[0], lines[1], title, title, lineterm=""))
    return [f"{name}: {len(old)} compilations before, {len(new)} after"]


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.split("\n\n")[0])
    parser.add_argument("before", type=Path)
    parser.add_argument("after", type=Path)
    parser.add_argument("--show", type=int, default=1, help="tests whose difference is printed")
    parser.add_argument("--lines", type=int, default=40, help="lines of each that are printed")
    parser.add_argument("--unordered", action="store_true", help="programs may come in any order")
    arguments = parser.parse_args()
    names = sorted({f.name for f in arguments.before.iterdir()})
    both = [name for name in names if (arguments.after / name).exists()]
    count, differ = 0, []
    for name in both:
        old, new = (compilations(folder / name) for folder in (arguments.before, arguments.after))
        if arguments.unordered:
            old, new = sorted(old), sorted(new)
        count += len(old)
        lines = difference(name, old, new)
        if lines:
            differ.append(name)
            if len(differ) <= arguments.show:
                print("\n".join(lines[: arguments.lines]), end="\n\n")
    for name in differ:
        print("differs:", name)
    print(f"{len(both)} tests with {count} compilations in both; {len(differ)} tests differ")
    return 1 if differ else 0


if __name__ == "__main__":
    sys.exit(main())
