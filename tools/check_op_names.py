# SPDX-License-Identifier: Apache-2.0
"""Checks that algorithms name no ops: python tools/check_op_names.py [root]

What is known about an op is a row of a table, and algorithms read rows
(docs/design/0031-op-facts.md). In csrc, outside of the places below, no string literal names an op:

    "aten::mm"                  a qualified name
    call.op == "embedding"      a name without its namespace, compared with the name of an op
    StrContains(op, "conv")     a part of a name, looked for in the name of an op

Tables and handlers name ops in their rows only: they compare no names, either, but have another
function, or an argument of it, in another row.

Names without a namespace are known from csrc/rules/signatures.inc. Prints one line per violation
and exits with 1 if there are any.
"""

from __future__ import annotations

import re
import sys
from collections.abc import Iterator
from fnmatch import fnmatch
from pathlib import Path

SOURCES = {".h", ".cc", ".cu", ".inc"}

# Tables, kernels and handlers. A star also stands for folders.
KNOW_OPS = [
    "csrc/rules/signatures.inc",
    "csrc/rules/tables/*",
    "csrc/rules/builder.cc",  # calls of common ops, by which decompositions and passes name them
    "csrc/ir/interpreter_*",
    "csrc/reference/*",
    "csrc/runtime/kernels/*",
    "csrc/runtime/backends/*",
    "csrc/trace/ops/*",
]

# Of these, those whose rows say everything, so that their functions compare no names.
DECIDE_BY_ROW = ["csrc/rules/tables/*", "csrc/trace/ops/*"]

# Tables of facts about PyTorch's ops, and places where kernels are registered or ops recorded.
TABLES = {
    "argument_checks.cc": "checks that Meta kernels do not make",
    "autocast.cc": "registers kernels",
    "cpu_forms.cc": "strides that differ from Meta's",
    "difference.cc": "what users call the ops that differ between programs",
    "lanes.cc": "defines the ops of borders of regions",
    "lower_starts.cc": "what ops become whose starts are passed when a program runs",
    "manual_region.cc": "registers kernels",
    "meta_overrides.cc": "shapes for which PyTorch has no Meta kernel",
    "number_arguments.cc": "which numbers are passed when a program runs",
    "op_traits.cc": "facts that PyTorch's schemas do not state",
    "op_traits.h": "the prefix of foreach ops",
    "recorder.cc": "the op of each step of a view, and of fills, casts and copies",
    "region_gradient.cc": "defines the op of a region's gradient",
    "register_kernels.cc": "registers kernels",
    "register_reshard.cc": "registers kernels",
}

_QUALIFIED = re.compile(r"(?:aten|spmd|prims?|c10d|torchvision|quantized)::[\w.*]+")
_STRING = re.compile(r'"((?:[^"\\\n]|\\.)*)"')
_SKIPPED = re.compile(r'//[^\n]*|/\*.*?\*/|"(?:[^"\\\n]|\\.)*"|\'(?:[^\'\\\n]|\\.)*\'', re.DOTALL)
# Expressions that are names of ops, in the spelling of this code.
_OP = r"(?:\b(?:op|base|ir_name|op_name)|\bop(?:\.|->)name|operator_name\(\)\.\w+|->name\(\))"
_EQUAL = [
    re.compile(rf'{_OP}\s*[!=]=\s*"([^"\n]+)"'),
    re.compile(rf'"([^"\n]+)"\s*[!=]=\s*[\w.>()-]*{_OP}\b'),
]
_PART = [
    re.compile(rf'{_OP}\.(?:r?find|starts_with|ends_with|compare|contains)\("([^"\n]+)"'),
    re.compile(
        rf'(?:StrContains|StartsWith|EndsWith|ConsumePrefix|ConsumeSuffix)\([^;"]*{_OP},\s*'
        r'"([^"\n]+)"'
    ),
]


def known_names(root: Path) -> set[str]:
    """The names of ops with a rule, without namespace and overload."""
    text = (root / "csrc/rules/signatures.inc").read_text()
    return set(re.findall(r'"\w+::(\w+)[.(\w]', text))


def without_comments(text: str) -> str:
    """The text with blanks in place of comments. Lines keep their numbers."""

    def keep(match: re.Match[str]) -> str:
        token = match.group()
        return token if token[0] in "\"'" else re.sub(r"[^\n]", " ", token)

    return _SKIPPED.sub(keep, text)


def names_in(text: str, known: set[str], *, compared: bool = False) -> Iterator[tuple[int, str]]:
    """(line, literal) of each literal that names an op; with `compared`, those only that are
    compared with the name of an op."""
    code = without_comments(text)
    found = {
        (match.start(1), match.group(1))
        for match in _STRING.finditer(code)
        if not compared and _QUALIFIED.fullmatch(match.group(1))
    }
    for patterns, is_named in (
        (_EQUAL, lambda bare: bare in known),
        (_PART, lambda bare: any(bare in name for name in known)),
    ):
        for match in (match for pattern in patterns for match in pattern.finditer(code)):
            bare = match.group(1).split("::")[-1].split(".")[0]
            if bare and is_named(bare):
                found.add((match.start(1), match.group(1)))
    for position, literal in sorted(found):
        yield code.count("\n", 0, position) + 1, literal


def violations(root: Path) -> list[str]:
    known = known_names(root)
    found = []
    needed = set()
    for path in sorted((root / "csrc").rglob("*")):
        where = path.relative_to(root).as_posix()
        if path.suffix not in SOURCES:
            continue
        if any(fnmatch(where, pattern) for pattern in DECIDE_BY_ROW):
            found += [
                f'{where}:{line}: compares the name of an op with "{literal}"; give each row a '
                f"function of its own"
                for line, literal in names_in(
                    path.read_text(errors="replace"), known, compared=True
                )
            ]
        if any(fnmatch(where, pattern) for pattern in KNOW_OPS):
            continue
        for line, literal in names_in(path.read_text(errors="replace"), known):
            if where.startswith("csrc/trace/") and path.name in TABLES:
                needed.add(path.name)
                break
            found.append(
                f'{where}:{line}: "{literal}" names an op; what is known about an op belongs in '
                f"its row (csrc/rules/op_facts.h)"
            )
    found += [
        f"tools/check_op_names.py: {name} names no op any more; take it off the list"
        for name in sorted(set(TABLES) - needed)
    ]
    return found


def main() -> int:
    root = Path(sys.argv[1]) if len(sys.argv) > 1 else Path(__file__).resolve().parent.parent
    found = violations(root)
    print("\n".join(found) if found else "op names: in tables, kernels and handlers only")
    return 1 if found else 0


if __name__ == "__main__":
    sys.exit(main())
