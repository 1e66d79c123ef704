# SPDX-License-Identifier: Apache-2.0
"""Checks docs/glossary.md: python tools/check_glossary.py [root]

Terms are in order within their part, and each is used in a source or another document. The part
"Words of our own" has at most fifteen. Prints one line per violation and exits with 1 if there are
any.
"""

import itertools
import re
import sys
from pathlib import Path

MOST_OF_OUR_OWN = 15

_ENTRY = re.compile(r"^\*\*(.+?)\*\* — ", re.MULTILINE)
_PART = re.compile(r"^## ", re.MULTILINE)
_OUR_OWN = "Words of our own"
_FOLDERS = ("csrc", "torch_spmd", "docs")
_SUFFIXES = {".h", ".cc", ".py", ".md"}


def used_text(root: Path) -> str:
    """The words of all sources and other documents, separated by single blanks."""
    files = sorted(file for folder in _FOLDERS for file in (root / folder).rglob("*.*"))
    texts = [f.read_text() for f in files if f.suffix in _SUFFIXES and f.name != "glossary.md"]
    return re.sub(r"[\W_]+", " ", " ".join(texts).lower())


def unused(terms: list[str], text: str) -> list[str]:
    words = [word for term in terms for word in term.split(", ")]
    return [w for w in words if not re.search(rf" {w.lower().replace('-', ' ')}s? ", text)]


def main(root: Path) -> int:
    parts = _PART.split((root / "docs/glossary.md").read_text())
    terms = [_ENTRY.findall(part) for part in parts]
    pairs = [pair for part in terms for pair in itertools.pairwise(part)]
    wrong = [f"'{b}' must stand before '{a}'" for a, b in pairs if b.lower() <= a.lower()]
    count = sum(len(part) for part in terms)
    own = sum(len(t) for part, t in zip(parts, terms) if part.startswith(_OUR_OWN))
    if own > MOST_OF_OUR_OWN:
        wrong.append(f"{own} words of our own, more than {MOST_OF_OUR_OWN}")
    text = used_text(root)
    wrong += [f"'{word}' is used nowhere" for part in terms for word in unused(part, text)]
    print("\n".join(wrong) or f"glossary: {count} terms, {own} of our own, in order and in use")
    return 1 if wrong or not count else 0


if __name__ == "__main__":
    sys.exit(main(Path(sys.argv[1]) if len(sys.argv) > 1 else Path(__file__).parents[1]))
