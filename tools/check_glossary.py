# SPDX-License-Identifier: Apache-2.0
"""Checks docs/glossary.md: python tools/check_glossary.py [root]

Terms are in order, and each is used in a source or another document. Prints one line per violation
and exits with 1 if there are any. An older word, in italics and parentheses behind its term, that
is no longer used is only mentioned, so that it can be deleted.
"""

import itertools
import re
import sys
from pathlib import Path

_ENTRY = re.compile(r"^\*\*(.+?)\*\*(?: \(\*(.+?)\*\))? — ", re.MULTILINE)
_FOLDERS = ("csrc", "torch_spmd", "docs")
_SUFFIXES = {".h", ".cc", ".py", ".md"}


def used_text(root: Path) -> str:
    """The words of all sources and other documents, separated by single blanks."""
    files = sorted(file for folder in _FOLDERS for file in (root / folder).rglob("*.*"))
    texts = [f.read_text() for f in files if f.suffix in _SUFFIXES and f.name != "glossary.md"]
    return re.sub(r"[\W_]+", " ", " ".join(texts).lower())


def unused(names: list[str], text: str) -> list[str]:
    words = [word for name in names if name for word in name.split(", ")]
    return [w for w in words if not re.search(rf" {w.lower().replace('-', ' ')}s? ", text)]


def main(root: Path) -> int:
    entries = _ENTRY.findall((root / "docs/glossary.md").read_text())
    terms = [term for term, _ in entries]
    text = used_text(root)
    pairs = itertools.pairwise(terms)
    wrong = [f"'{b}' must stand before '{a}'" for a, b in pairs if b.lower() <= a.lower()]
    wrong += [f"'{word}' is used nowhere" for word in unused(terms, text)]
    gone = [f"'{word}' is no longer used" for word in unused([old for _, old in entries], text)]
    print("\n".join(wrong + gone) or f"glossary: {len(terms)} terms, in order and in use")
    return 1 if wrong or not terms else 0


if __name__ == "__main__":
    sys.exit(main(Path(sys.argv[1]) if len(sys.argv) > 1 else Path(__file__).parents[1]))
