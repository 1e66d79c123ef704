#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Writes csrc/rules/signatures.inc: the schema of every op with a rule, as PyTorch prints it.

The core knows nothing of LibTorch, and checks graphs against these texts. Run it after a rule was
added for an op that had none; `tests/python/tools/test_signatures.py` says when that was forgotten.
Ops that users define and register rules for are not in it.
"""

from __future__ import annotations

import pathlib

import torch

import torch_spmd  # noqa: F401  (the schemas of ops called spmd::…)
from torch_spmd import _C

TABLE = pathlib.Path(__file__).parent.parent / "csrc" / "rules" / "signatures.inc"
HEADER = """\
// SPDX-License-Identifier: Apache-2.0
// The schema of every op that has a rule, sorted by op. Written by tools/write_signatures.py.
"""


def signatures() -> list[str]:
    """The schemas, sorted by op."""
    schemas = {}
    for schema in torch._C._jit_get_all_schemas():
        name = schema.name + ("." + schema.overload_name if schema.overload_name else "")
        schemas[name] = str(schema)
    ours = [op for op in _C.rule_ops() if op.startswith(("aten::", "spmd::"))]
    return [schemas[op] for op in ours if op in schemas]


def text() -> str:
    """The table."""
    lines = ['    "' + s.replace("\\", "\\\\").replace('"', '\\"') + '",\n' for s in signatures()]
    return HEADER + "".join(lines)


if __name__ == "__main__":
    TABLE.write_text(text())
