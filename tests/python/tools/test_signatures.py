# SPDX-License-Identifier: Apache-2.0
"""The table of schemas that graphs are checked against is PyTorch's own, and complete."""

import importlib.util
from pathlib import Path

import pytest
import torch

from torch_spmd import _C

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


@pytest.mark.skipif(not torch.__version__.startswith("2.13"), reason="another PyTorch's schemas")
def test_the_table_is_what_pytorch_says(tool):
    assert tool.TABLE.read_text() == tool.text(tool.families()), "run tools/write_signatures.py"
