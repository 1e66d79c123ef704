# SPDX-License-Identifier: Apache-2.0
"""What mkdocs does with the pages of docs/ (`hooks` in mkdocs.yml).

    <!-- names: lax -->             the public names of spmd.lax, with signatures and docstrings
    <!-- names: spmd: Mesh P -->    some of them, below a heading of their own
    <!-- picture: memory -->        a picture of the start page, drawn by tools/draw_pictures.py
    <!-- messages -->               the errors of the package and of csrc by their first words

A public name in a page's text, such as `spmd.lax.psum`, links to its place in the reference.
"""

from __future__ import annotations

import ast
import functools
import re
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parent.parent
PACKAGE = ROOT / "torch_spmd"
PICTURES = ROOT / "build" / "pictures"
_BLOCK = re.compile(r"^```.*?^```$", re.DOTALL | re.MULTILINE)
_NAME = re.compile(r"(?<!\[)`spmd\.([\w.]+)(\([^`]*\))?`(?!\])")
_MARK = re.compile(r"<!-- (names|picture|messages)(?:: ([\w.]+))?(?:: ([\w ]+))? -->")
_ERROR = re.compile(r"absl::\w+Error\(")
_TOKEN = re.compile(r"\"((?:[^\"\\]|\\.)*)\"|([()])|([^\s,\"()]+)")


def module_file(subject: str) -> Path:
    """The file of `spmd.<subject>`, or of `spmd` for "spmd"."""
    if subject == "spmd":
        return PACKAGE / "__init__.py"
    path = PACKAGE / f"{subject.replace('.', '/')}.py"
    return path if path.exists() else PACKAGE / subject / "__init__.py"


@functools.cache
def names_of(subject: str) -> tuple[str, ...]:
    """`__all__` of a public module, without the modules in it."""
    tree = ast.parse(module_file(subject).read_text())
    for node in tree.body:
        if isinstance(node, ast.Assign) and getattr(node.targets[0], "id", "") == "__all__":
            names: list[str] = ast.literal_eval(node.value)
            if subject == "spmd":
                names = [name for name in names if not module_file(name).exists()]
            return tuple(names)
    raise ValueError(f"{module_file(subject)} has no __all__")


@functools.cache
def subjects() -> tuple[str, ...]:
    """The public modules, `spmd` itself first."""
    tree = ast.parse((PACKAGE / "__init__.py").read_text())
    [names] = [
        ast.literal_eval(node.value)
        for node in tree.body
        if isinstance(node, ast.Assign) and getattr(node.targets[0], "id", "") == "__all__"
    ]
    return ("spmd", *(name for name in names if module_file(name).exists()))


@functools.cache
def public_names() -> frozenset[str]:
    """Without "spmd.": `fsdp`, `lax.psum`."""
    found = {*names_of("spmd")}
    for subject in subjects()[1:]:
        found |= {f"{subject}.{name}" for name in names_of(subject)}
    return frozenset(found)


def reference(subject: str, some: str | None = None) -> str:
    """A heading for each public name of a subject, or for some, which mkdocstrings fills."""
    where = "torch_spmd" if subject == "spmd" else f"torch_spmd.{subject}"
    names = some.split() if some else names_of(subject)
    level = "\n    options:\n      heading_level: 3" if some else ""
    return "\n\n".join(f"::: {where}.{name}{level}" for name in names)


def messages() -> Iterator[tuple[str, str]]:
    """(first words, the folder that raises it) of each error that has a text."""
    for path in sorted(PACKAGE.rglob("*.py")):
        for node in ast.walk(ast.parse(path.read_text())):
            if isinstance(node, ast.Raise) and isinstance(node.exc, ast.Call) and node.exc.args:
                yield _first_words(node.exc.args[0]), str(path.relative_to(ROOT).parent)
    for path in sorted((ROOT / "csrc").rglob("*.cc")):
        text = path.read_text()
        for error in _ERROR.finditer(text):
            yield _joined(text[error.end() :]), "/".join(path.relative_to(ROOT).parts[:2])


def _joined(arguments: str) -> str:
    """The literals of a call of C++ up to its closing parenthesis, with … for what is between."""
    depth, words = 1, ""
    for literal, parenthesis, _ in _TOKEN.findall(arguments):
        depth += {"(": 1, ")": -1}.get(parenthesis, 0)
        if depth == 0 or len(words) > 150:
            break
        if literal:
            words += literal.replace("\\", "")
        elif words and not words.endswith("…"):
            words += "…"
    return words.rstrip("…")


def _first_words(text: ast.expr) -> str:
    """A text with … for what is filled in."""
    if isinstance(text, ast.Constant) and isinstance(text.value, str):
        return text.value
    if isinstance(text, ast.JoinedStr):
        return "".join(
            str(part.value) if isinstance(part, ast.Constant) else "…" for part in text.values
        )
    return ""


def message_table() -> str:
    """The errors by their first words, at most 100 characters of each."""
    rows: dict[str, str] = {}
    for text, where in messages():
        words = " ".join(text.split())
        if len(re.findall(r"[A-Za-z]{2,}", words)) >= 3:
            shown = words if len(words) <= 100 else words[:100].rpartition(" ")[0] + " …"
            rows.setdefault(shown.replace("|", "\\|").replace("`", "'"), where)
    lines = [f"| `{words}` | `{where}` |" for words, where in sorted(rows.items())]
    return "\n".join(["| message | raised in |", "|---|---|", *lines])


def picture(name: str) -> str:
    """The picture as HTML, or where it would be if the package cannot be imported here."""
    made = PICTURES / f"{name}.html"
    if not made.exists():
        return "*(This picture is drawn where the package is built.)*"
    return f'<div class="picture">\n{made.read_text()}\n</div>'


def linked(markdown: str) -> str:
    """Links the public names in the text, but not those in headings and blocks of code."""

    def link(match: re.Match[str]) -> str:
        name = match[1]
        if name not in public_names():
            return match[0]
        return f"[{match[0]}][torch_spmd.{name}]"

    def text(part: str) -> str:
        lines = part.split("\n")
        return "\n".join(line if line.startswith("#") else _NAME.sub(link, line) for line in lines)

    parts, end = [], 0
    for block in _BLOCK.finditer(markdown):
        parts += [text(markdown[end : block.start()]), block[0]]
        end = block.end()
    return "".join([*parts, text(markdown[end:])])


# --- called by mkdocs ---


def on_pre_build(config: Any) -> None:
    """Draws the pictures, if the package can be imported."""
    PICTURES.mkdir(parents=True, exist_ok=True)
    command = [sys.executable, str(ROOT / "tools" / "draw_pictures.py"), str(PICTURES)]
    done = subprocess.run(command, capture_output=True, text=True, cwd=ROOT)
    if done.returncode:
        print("pictures are not drawn:", done.stderr.strip().rpartition("\n")[2], file=sys.stderr)


def on_page_markdown(markdown: str, page: Any, config: Any, files: Any) -> str:
    def filled(match: re.Match[str]) -> str:
        if match[1] == "names":
            return reference(match[2], match[3])
        return picture(match[2]) if match[1] == "picture" else message_table()

    return _MARK.sub(filled, linked(markdown))
