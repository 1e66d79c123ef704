# SPDX-License-Identifier: Apache-2.0
"""tools/count_words.py: what a sentence is, and what fails."""

import subprocess
import sys

import pytest

LONG = " ".join(["word"] * 41) + "."


def counted(root, tmp_path, text):
    (tmp_path / "docs").mkdir()
    (tmp_path / "docs/page.md").write_text(text)
    tool = [sys.executable, str(root / "tools/count_words.py"), str(tmp_path)]
    done = subprocess.run(tool, capture_output=True, text=True, check=False)
    return done.returncode, done.stdout.splitlines()


def test_sentences_are_counted_without_code_tables_and_headings(root, tmp_path):
    text = f"""# A title of five words

One two three. Four `five six` [seven
eight](a-link.md) nine (e.g. Ten)! Is v1.2 one word?

- an item
  of two lines
- another one

```python
{LONG}
```

| {LONG} |
|---|

    {LONG}
"""
    status, lines = counted(root, tmp_path, text)
    # 3, 7, 4, 5 and 2 words.
    assert (status, lines) == (
        0,
        ["  4.2    7     5  docs/page.md", "words: 5 sentences of 4.2 words"],
    )


@pytest.mark.parametrize(
    "text, found",
    [
        (LONG, "docs/page.md: 41 words: "),
        ("The mesh, two axes of which are small.", "docs/page.md: 'of which': "),
        ("A step behind the first.", "docs/page.md: 'behind': "),
        ("It is no server.", "docs/page.md: 'is no': "),
        (" ".join(["word"] * 15) + ".", "15.0 words per sentence, more than 14"),
    ],
)
def test_what_fails(root, tmp_path, text, found):
    status, lines = counted(root, tmp_path, text)
    assert status == 1
    assert any(line.startswith(found) for line in lines)


def test_words_that_only_look_like_a_phrase_pass(root, tmp_path):
    assert counted(root, tmp_path, "It is no longer here. Besides, this is not.")[0] == 0


def test_no_page_is_not_a_success(root, tmp_path):
    assert counted(root, tmp_path, "# A title\n")[0] == 1
