# SPDX-License-Identifier: Apache-2.0
"""Checks the paths that documents name: python tools/check_paths.py [root]

    1. Each link to a file, and each path in backticks such as `csrc/util/box.h`, exists. It may
       have `*`, `{h,cc}` and `<family>`, and may be relative to its document's folder.
    2. Where a document says "`Name` in `path`", that file defines the name: it is in a line of the
       file that is not indented.

Prints one line per violation and exits with 1 if there are any.
"""

import re
import sys
from pathlib import Path

_LINK = re.compile(r"\]\(([^)#:]+)(?:#[^)]*)?\)")
_PATH = re.compile(r"`([\w.<*{][\w./*<>{},-]*)`")
_NAMED = re.compile(r"`([\w:]+)` in\s+`([\w./]+)`")
_BRACES = re.compile(r"\{([^}]*)\}")
_IGNORED = (".venv", "node_modules", "build")


def documents(root: Path) -> list[Path]:
    found = sorted(root.rglob("*.md"))
    return [p for p in found if not p.relative_to(root).parts[0].startswith(_IGNORED)]


def spellings(path: str) -> list[str]:
    """The patterns that `path` stands for: one per alternative in braces."""
    braces = _BRACES.search(path)
    if braces is None:
        return [re.sub(r"<\w+>", "*", path)]
    parts = braces[1].split(",")
    return [s for part in parts for s in spellings(path.replace(braces[0], part, 1))]


def exists(path: str, folders: list[Path]) -> bool:
    """Whether all spellings exist below one of the folders. Sources may lack their suffix."""
    return any(
        all(any(folder.glob(s)) or any(folder.glob(f"{s}.*")) for s in spellings(path))
        for folder in folders
    )


def is_ours(path: str, folders: list[Path]) -> bool:
    """Whether `path` is in a folder of sources here. Others are built files, commands, examples."""
    first, _, rest = path.partition("/")
    return bool(rest) and first != "build" and any((f / first).is_dir() for f in folders)


def violations(root: Path, document: Path) -> list[str]:
    text = document.read_text()
    name = document.relative_to(root)
    folders = [root, document.parent]
    links = [(link, [document.parent]) for link in _LINK.findall(text)]
    paths = [(p.rstrip("/"), folders) for p in _PATH.findall(text) if is_ours(p, folders)]
    wrong = [f"{name}: '{p}' does not exist" for p, f in links + paths if not exists(p, f)]
    for term, path in _NAMED.findall(text):
        file = root / path
        defined = re.compile(rf"^(?![\s/#]).*\b{term}\b", re.MULTILINE)
        if file.is_file() and not defined.search(file.read_text()):
            wrong.append(f"{name}: '{path}' does not define '{term}'")
    return list(dict.fromkeys(wrong))


def main(root: Path) -> int:
    checked = documents(root)
    wrong = [line for document in checked for line in violations(root, document)]
    print("\n".join(wrong) or f"paths: all that {len(checked)} documents name exist")
    return 1 if wrong else 0


if __name__ == "__main__":
    sys.exit(main(Path(sys.argv[1]) if len(sys.argv) > 1 else Path(__file__).parents[1]))
