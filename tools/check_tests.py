#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Checks that each source of the compiler has a test of its name.

A test of csrc/FOLDER/.../NAME.cc is one of

  tests/cpp/FOLDER/.../NAME_test.cc
  tests/cpp/rules/NAME_test.cc            for csrc/rules/tables/NAME.cc
  tests/golden/NAME/*.txt                 for a pass
  tests/golden/FOLDER/NAME.txt            for anything else that a text shows
"""

import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
FOLDERS = (
    *("util", "mesh", "sharding", "ir", "rules", "machine", "cost", "propagate", "program"),
    *("timeline", "partition"),
)
# Sources that a test of another name shows, each with that test and the reason.
SHOWN_ELSEWHERE = {
    # The parts of one pass, which its 20 texts show together.
    "partition/joined_graph.cc": "golden/join_lanes",
    "partition/lane_dims.cc": "golden/join_lanes",
    "partition/lane_factors.cc": "golden/join_lanes",
    "partition/lane_values.cc": "golden/join_lanes",
    "partition/lane_views.cc": "golden/join_lanes",
}


def tests_of(source: Path) -> list[Path]:
    """Where a test of `source`, relative to csrc, may be; relative to tests."""
    folder, name = source.parts[0], source.stem
    places = [Path("cpp", source.parent, f"{name}_test.cc"), Path("golden", folder, f"{name}.txt")]
    if source.parent == Path("rules/tables"):
        places.append(Path("cpp/rules", f"{name}_test.cc"))
    return places


def has_test(source: Path, tests: Path) -> bool:
    texts = tests / "golden" / source.stem
    return any((tests / test).is_file() for test in tests_of(source)) or any(texts.glob("*.txt"))


def problems(root: Path) -> list[str]:
    found = []
    for folder in FOLDERS:
        for path in sorted((root / "csrc" / folder).rglob("*.cc")):
            source = path.relative_to(root / "csrc")
            if has_test(source, root / "tests"):
                continue
            elsewhere = SHOWN_ELSEWHERE.get(source.as_posix())
            if elsewhere is None:
                test = Path("tests", tests_of(source)[-1])
                found.append(f"csrc/{source}: there is no test of its name, as {test}")
            elif not (root / "tests" / elsewhere).exists():
                found.append(f"csrc/{source}: its test tests/{elsewhere} does not exist")
    return found


def main() -> int:
    found = problems(ROOT)
    for line in found:
        print(line)
    if not found:
        print("every source of the compiler has a test of its name")
    return 1 if found else 0


if __name__ == "__main__":
    sys.exit(main())
