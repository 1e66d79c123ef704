# SPDX-License-Identifier: Apache-2.0
"""tools/check_glossary.py: the order, the use and the number of words."""

import subprocess
import sys

import pytest


def checked(root, tmp_path, entries, own):
    (tmp_path / "docs").mkdir()
    page = "".join(f"**{word}** — A word.\n\n" for word in entries)
    page += "## Words of our own\n\n" + "".join(f"**{word}** — A word.\n\n" for word in own)
    (tmp_path / "docs/glossary.md").write_text(page)
    words = [w for w in [*entries, *own] if w != "nowhere"]
    (tmp_path / "docs/page.md").write_text("\n" + " ".join(words) + "\n")
    tool = [sys.executable, str(root / "tools/check_glossary.py"), str(tmp_path)]
    done = subprocess.run(tool, capture_output=True, text=True, check=False)
    return done.returncode, done.stdout


def test_each_part_has_an_order_of_its_own(root, tmp_path):
    text = "glossary: 3 terms, 1 of our own, in order and in use\n"
    assert checked(root, tmp_path, ["axis", "mesh"], ["box"]) == (0, text)


@pytest.mark.parametrize(
    "entries, own, found",
    [
        (["mesh", "axis"], [], "'axis' must stand before 'mesh'\n"),
        (["axis", "nowhere"], [], "'nowhere' is used nowhere\n"),
        ([], [f"w{i:02}" for i in range(16)], "16 words of our own, more than 15\n"),
    ],
)
def test_what_fails(root, tmp_path, entries, own, found):
    assert checked(root, tmp_path, entries, own) == (1, found)
