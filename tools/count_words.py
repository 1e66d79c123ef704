# SPDX-License-Identifier: Apache-2.0
"""Measures the sentences of the pages: python tools/count_words.py [root]

Prints the average and the longest sentence of each page, in words. Code blocks, tables, headings
and pictures are left out; code in backticks is one word, and so is the text of a link per word.
Exits with 1, and prints the sentences, if one has more than 40 words or a phrase of `PHRASES`, or
if all pages together have more than 14 words per sentence.
"""

import re
import sys
from pathlib import Path

LONGEST, AVERAGE = 40, 14
# What reads like a translation, and what to write: a new sentence, "not a", "after", "next to",
# "alone", "again", "someone".
PHRASES = (
    "of which",
    "in whose",
    "is no",
    "behind",
    "beside",
    "by itself",
    "comes again",
    "somebody",
)

_ALLOWED = re.compile(r"\bis no (longer|more|less)\b")
_LEFT_OUT = re.compile(r"^(```.*?^```|<!--.*?-->)", re.MULTILINE | re.DOTALL)
_LEFT_OUT_LINE = re.compile(r"^(#|\s*\||    \S|!\[|---|<)")
_LIST_ITEM = re.compile(r"^\s*([-*]|\d+\.)\s+")
_IMAGE = re.compile(r"!\[[^\]]*\]\([^)]*\)")
_LINK = re.compile(r"\[([^\]]*)\]\([^)]*\)")
_CODE = re.compile(r"`[^`]+`")
_END = re.compile(r"(?<!\be\.g)(?<!\bi\.e)[.!?][)\"”*_]*\s+(?=[^a-z\s])")


def pages(root: Path) -> list[Path]:
    return [
        *(root / name for name in ("README.md", "CONTRIBUTING.md") if (root / name).is_file()),
        *sorted((root / "docs").glob("*.md")),
        *sorted((root / "docs/design").glob("*.md")),
    ]


def paragraphs(text: str) -> list[str]:
    """The prose of a page. An item of a list is a paragraph of its own."""
    found = [""]
    in_item = False
    text = _IMAGE.sub("", _LEFT_OUT.sub("\n", text))
    for line in text.splitlines():
        item = _LIST_ITEM.match(line)
        if not line.strip() or item or (_LEFT_OUT_LINE.match(line) and not in_item):
            found.append("")
        if item:
            line = line[item.end() :]
        elif _LEFT_OUT_LINE.match(line) and not (in_item and line.startswith("    ")):
            continue
        in_item = bool(line.strip()) and (bool(item) or in_item)
        found[-1] += " " + line.strip()
    return [p.strip() for p in found if p.strip()]


def sentences(text: str) -> list[str]:
    """The sentences of a page, without markup."""
    plain = (_LINK.sub(r"\1", _CODE.sub("CODE", p)) for p in paragraphs(text))
    return [s for p in plain for s in _END.split(p) if words(s)]


def words(sentence: str) -> int:
    return sum(any(c.isalnum() for c in word) for word in sentence.split())


def phrases(sentence: str) -> list[str]:
    text = _ALLOWED.sub("", sentence.lower())
    return [p for p in PHRASES if re.search(rf"\b{p}\b", text)]


def main(root: Path) -> int:
    wrong, all_sizes = [], []
    for page in pages(root):
        name = page.relative_to(root)
        found = sentences(page.read_text())
        sizes = [words(s) for s in found]
        all_sizes += sizes
        if sizes:
            print(f"{sum(sizes) / len(sizes):5.1f} {max(sizes):4} {len(sizes):5}  {name}")
        wrong += [f"{name}: {n} words: {s}" for n, s in zip(sizes, found) if n > LONGEST]
        wrong += [f"{name}: '{p}': {s}" for s in found for p in phrases(s)]
    average = sum(all_sizes) / max(1, len(all_sizes))
    if average > AVERAGE:
        wrong.append(f"{average:.1f} words per sentence, more than {AVERAGE}")
    print("\n".join(wrong) or f"words: {len(all_sizes)} sentences of {average:.1f} words")
    return 1 if wrong or not all_sizes else 0


if __name__ == "__main__":
    sys.exit(main(Path(sys.argv[1]) if len(sys.argv) > 1 else Path(__file__).parents[1]))
