# SPDX-License-Identifier: Apache-2.0
"""tools/compare_torch: what differs between two versions in what is used."""

import ast
import importlib.util
from pathlib import Path

import pytest

TOOL = Path(__file__).parents[3] / "tools" / "compare_torch.py"


@pytest.fixture(scope="module")
def tool():
    spec = importlib.util.spec_from_file_location("compare_torch", TOOL)
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def test_names_are_found_behind_other_names(tool):
    source = """
import torch, torch.nn.functional as F
from torch.distributed import distributed_c10d as c10d
F.relu(torch.ones(3).sum())
c10d._world.pg_map
other.torch.name
vmap = _room("torch._functorch.vmap", {"_nested": why})
"""
    assert set(tool.names_of(ast.parse(source))) == {
        "torch",
        "torch.nn.functional",
        "torch.nn.functional.relu",
        "torch.ones",
        "torch.distributed.distributed_c10d",
        "torch.distributed.distributed_c10d._world",
        "torch.distributed.distributed_c10d._world.pg_map",
        "torch._functorch.vmap._nested",
    }


def test_what_a_name_is(tool):
    assert tool.describe("torch.overrides.is_tensor_like") == "(inp)"
    assert tool.describe("torch.ones") == "there"
    assert tool.describe("torch.nn.no_such_name") == "is missing"
    assert tool.describe("torch.no_such_module.name") == "is missing"


def test_every_header_and_name_of_the_sources_is_there(tool):
    facts = tool.facts()
    assert tool.included() - facts["headers"].keys() <= {
        "c10/core/DeviceCapability.h",
        "ATen/NodeCreationHooks.h",
    }
    assert "torch/csrc/distributed/c10d/ProcessGroup.hpp" in facts["headers"]
    assert facts["names"]["torch.distributed.checkpoint.save"].startswith("(state_dict")
    in_cpp = facts["names in C++"]
    assert {"bump_version", "_fw_grad", "key_set_"} <= in_cpp.keys()
    # Headers and names of later versions: the door asks for them.
    assert {name for name, said in in_cpp.items() if said != "there"} <= {"NodeCreationHooks"}


def test_private_names_of_headers(tool, tmp_path):
    (tmp_path / "c10").mkdir()
    (tmp_path / "c10/a.h").write_text("void _there(int);\nint _other_there;\n")
    (tmp_path / "ATen/ops").mkdir(parents=True)
    (tmp_path / "ATen/ops/a.h").write_text("void _of_op();\n")
    assert tool.of_headers(tmp_path, {"_there", "_other", "_of_op"}) == {
        "_there": "there",
        "_other": "is missing",
        "_of_op": "is missing",
    }


def test_the_report(tool):
    old = {
        "version": "2.13.0",
        "schemas": {"aten::add.Tensor": "old text", "aten::_gone": "text", "aten::same": "text"},
        "headers": {"c10/a.h": "a\nb", "c10/b.h": "", "c10/same.h": "a"},
        "names in C++": {"_fw_grad": "there", "bump_version": "there"},
        "names": {"torch.a": "(x)", "torch.b": "there", "torch.same": "there"},
    }
    new = {
        "version": "2.15.0",
        "schemas": {"aten::add.Tensor": "new text", "aten::_new": "text", "aten::same": "text"},
        "headers": {"c10/a.h": "a\nc\nd", "c10/same.h": "a"},
        "names in C++": {"_fw_grad": "is missing", "bump_version": "there"},
        "names": {"torch.a": "(x, y)", "torch.b": "is missing", "torch.same": "there"},
    }
    assert list(tool.report(old, new, with_headers=False)) == [
        "PyTorch 2.13.0 → 2.15.0",
        "\nOp schemas: 3 differ",
        "  - text",
        "  + text",
        "! - old text",
        "! + new text",
        f"\nHeaders: 2 of {len(tool.included())} differ",
        "  c10/a.h: 1 lines less, 2 more",
        "! c10/b.h: 0 lines less, 0 more",
        "\nPrivate names in C++: 1 of 2 differ",
        "! _fw_grad",
        "      - there",
        "      + is missing",
        "\nNames in Python: 2 of 3 differ",
        "  torch.a",
        "      - (x)",
        "      + (x, y)",
        "! torch.b",
        "      - there",
        "      + is missing",
    ]
