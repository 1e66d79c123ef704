# SPDX-License-Identifier: Apache-2.0
"""The table of schemas that graphs are checked against is PyTorch's own, and complete."""

import importlib.util
from pathlib import Path

import pytest
import torch

from torch_spmd import _C, _versions

TOOL = Path(__file__).parents[3] / "tools" / "write_signatures.py"


@pytest.fixture
def tool():
    spec = importlib.util.spec_from_file_location("write_signatures", TOOL)
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def test_every_rule_has_a_signature(tool):
    with_rule = [op for op in _C.rule_ops() if op.startswith(("aten::", "spmd::"))]
    assert with_rule == sorted(tool.families())


@pytest.mark.skipif(
    torch.__version__.partition("+")[0] != _versions.RECOMMENDED, reason="another PyTorch's schemas"
)
def test_the_table_is_what_pytorch_says(tool):
    assert tool.TABLE.read_text() == tool.text(tool.families()), "run tools/write_signatures.py"


def test_an_op_that_pytorch_lacks_keeps_its_line(tool, tmp_path, monkeypatch):
    line = '    {Family::kMatmul, "aten::a_gone_op(Tensor self) -> Tensor"},\n'
    table = tmp_path / "signatures.inc"
    table.write_text(tool.HEADER + line)
    monkeypatch.setattr(tool, "TABLE", table)
    assert tool.text(tool.families()) == tool.HEADER + line
    with pytest.raises(SystemExit, match=r"PyTorch has no schema of aten::no_op$"):
        tool.text(tool.families() | {"aten::no_op": "kMatmul"})
