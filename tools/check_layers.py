# SPDX-License-Identifier: Apache-2.0
"""Checks that csrc keeps its layers: python tools/check_layers.py [root]

    1. A folder includes only itself and the folders that its CMakeLists.txt names, or that those
       name in turn.
    2. It names only folders that csrc/CMakeLists.txt lists before it.
    3. LibTorch's headers appear only below the line: in runtime, trace and python.
    4. In a folder whose CMakeLists.txt names rooms (ROOMS), every source is in a room, and includes
       of that folder only its own room and those that are named before it.
    5. csrc/trace/compat, the door to what PyTorch keeps private, includes nothing else of csrc. So
       every folder below the line may include it, whatever its CMakeLists.txt names.

Prints one line per violation and exits with 1 if there are any.
"""

from __future__ import annotations

import re
import sys
from collections.abc import Iterator
from pathlib import Path

TORCH_FOLDERS = {"runtime", "trace", "python"}
TORCH_HEADERS = ("torch/", "ATen/", "c10/", "caffe2/", "pybind11/")
DOOR = ["csrc", "trace", "compat"]
SOURCES = {".h", ".cc", ".cu", ".inc"}

_LIBRARY = re.compile(r"spmd_(?:library|python_module)\(\s*(\S+)([^)]*)\)")
_INCLUDE = re.compile(r'^\s*#\s*include\s*[<"]([^>"]+)[>"]', re.MULTILINE)


def layer_order(csrc: Path) -> list[str]:
    """The folders in the order of csrc/CMakeLists.txt, first layer first."""
    text = (csrc / "CMakeLists.txt").read_text()
    return re.findall(r"^\s*add_subdirectory\((\w+)\)", text, re.MULTILINE)


def declared(csrc: Path, folder: str, wanted: str) -> list[str]:
    """What the folder's CMakeLists.txt names after the word `wanted`."""
    text = re.sub(r"#.*", "", (csrc / folder / "CMakeLists.txt").read_text())
    words: list[str] = []
    for _, arguments in _LIBRARY.findall(text):
        section = ""
        for word in arguments.split():
            if word.isupper():
                section = word
            elif section == wanted:
                words.append(word)
    return words


def declared_deps(csrc: Path, folder: str) -> set[str]:
    """The folders that the folder may include."""
    return {word.split("/")[0] for word in declared(csrc, folder, "DEPS")} - {folder}


def reachable(deps: dict[str, set[str]], folder: str) -> set[str]:
    """The folder, what it names, what those name, and so on."""
    seen = {folder}
    todo = [folder]
    while todo:
        for dep in deps.get(todo.pop(), set()) - seen:
            seen.add(dep)
            todo.append(dep)
    return seen


def includes(path: Path) -> Iterator[tuple[int, str]]:
    """(line number, header) of each #include."""
    text = path.read_text(errors="replace")
    for match in _INCLUDE.finditer(text):
        yield text.count("\n", 0, match.start()) + 1, match.group(1)


def room_violations(root: Path, folder: str, rooms: list[str]) -> Iterator[str]:
    """Sources outside the rooms, and includes of a later room."""
    place = {room: k for k, room in enumerate(rooms)}
    base = root / "csrc" / folder
    for path in sorted(base.rglob("*")):
        if path.suffix not in SOURCES:
            continue
        where, room = path.relative_to(root), path.relative_to(base).parts[0]
        if room not in place:
            yield f"{where}: is in none of the rooms of {folder!r}"
            continue
        for line, header in includes(path):
            parts = header.split("/")
            if parts[:2] == ["csrc", folder] and place.get(parts[2], len(rooms)) > place[room]:
                yield f"{where}:{line}: includes {header}, which is not above room {room!r}"


def violations(root: Path) -> list[str]:
    csrc = root / "csrc"
    order = layer_order(csrc)
    deps = {folder: declared_deps(csrc, folder) for folder in order}
    found = [
        f"csrc/{path.name}: not listed in csrc/CMakeLists.txt"
        for path in sorted(csrc.iterdir())
        if path.is_dir() and path.name not in order
    ]
    for position, folder in enumerate(order):
        found += [
            f"csrc/{folder}/CMakeLists.txt: names {dep!r}, which is not above {folder!r}"
            for dep in sorted(deps[folder] - set(order[:position]))
        ]
        if rooms := declared(csrc, folder, "ROOMS"):
            found += room_violations(root, folder, rooms)
        allowed = reachable(deps, folder)
        for path in sorted((csrc / folder).rglob("*")):
            if path.suffix not in SOURCES:
                continue
            where = path.relative_to(root)
            for line, header in includes(path):
                parts = header.split("/")
                if list(where.parts[:3]) == DOOR and parts[0] == "csrc" and parts[:3] != DOOR:
                    found.append(f"{where}:{line}: includes {header}; the door includes LibTorch")
                elif folder in TORCH_FOLDERS and parts[:3] == DOOR:
                    continue
                elif parts[0] == "csrc" and parts[1] not in allowed:
                    found.append(
                        f"{where}:{line}: includes {header}, but {folder!r} does not name "
                        f"{parts[1]!r} in its CMakeLists.txt"
                    )
                elif folder not in TORCH_FOLDERS and header.startswith(TORCH_HEADERS):
                    found.append(f"{where}:{line}: includes {header}; LibTorch begins at 'runtime'")
    return found


def main() -> int:
    root = Path(sys.argv[1]) if len(sys.argv) > 1 else Path(__file__).resolve().parent.parent
    found = violations(root)
    print("\n".join(found) if found else "layers: in order")
    return 1 if found else 0


if __name__ == "__main__":
    sys.exit(main())
