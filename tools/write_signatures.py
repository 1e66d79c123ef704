#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Writes csrc/rules/signatures.inc: the schemas of all ops with a row, and the family of each.

    python tools/write_signatures.py                         # the schemas as PyTorch prints them
    python tools/write_signatures.py kView aten::flatten …   # and of more ops, of this family

The core knows nothing of LibTorch, checks graphs against these texts, and compiles only if each op
in the list has one row, in the table of its family (csrc/rules/families.h). A new op comes into the
list first: with this tool or, if PyTorch does not know it yet (`spmd::…`), by hand. Ops that users
define and register rules for are not in it. An op that the installed PyTorch lacks keeps its line.
"""

from __future__ import annotations

import pathlib
import re
import sys

import torch

import torch_spmd  # noqa: F401  (the schemas of ops called spmd::…)

TABLE = pathlib.Path(__file__).parent.parent / "csrc" / "rules" / "signatures.inc"
HEADER = """\
// SPDX-License-Identifier: Apache-2.0
// The schema of every op that has a row, and the family whose table has it; sorted by op.
// Written by tools/write_signatures.py.
"""


def table() -> dict[str, tuple[str, str]]:
    """By op: its family and its schema, as they are written now."""
    rows = re.findall(r'{Family::(\w+), "(([^(]+).*)"},\n', TABLE.read_text())
    return {op: (family, schema) for family, schema, op in rows}


def families() -> dict[str, str]:
    """By op: its family."""
    return {op: family for op, (family, _) in table().items()}


def text(family_of: dict[str, str]) -> str:
    """The table. Errors: SystemExit for an op that neither PyTorch nor the table knows."""
    schemas = {op: schema for op, (_, schema) in table().items()}
    for schema in torch._C._jit_get_all_schemas():
        name = schema.name + ("." + schema.overload_name if schema.overload_name else "")
        schemas[name] = str(schema).replace("\\", "\\\\").replace('"', '\\"')
    unknown = [op for op in family_of if op not in schemas]
    if unknown:
        raise SystemExit(f"PyTorch has no schema of {', '.join(unknown)}")
    lines = [f'    {{Family::{family_of[op]}, "{schemas[op]}"}},\n' for op in sorted(family_of)]
    return HEADER + "".join(lines)


if __name__ == "__main__":
    family, *ops = sys.argv[1:] or [""]
    TABLE.write_text(text(families() | dict.fromkeys(ops, family)))
