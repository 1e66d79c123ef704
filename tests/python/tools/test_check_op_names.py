# SPDX-License-Identifier: Apache-2.0
"""tools/check_op_names.py: the repository passes, and each kind of violation is found."""

import importlib.util
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[3]
spec = importlib.util.spec_from_file_location(
    "check_op_names", ROOT / "tools" / "check_op_names.py"
)
check_op_names = importlib.util.module_from_spec(spec)
spec.loader.exec_module(check_op_names)

KNOWN = {"mm", "embedding", "convolution", "conv_tbc"}


def test_the_repository_names_ops_in_tables_only():
    assert check_op_names.violations(ROOT) == []


@pytest.mark.parametrize(
    "code",
    [
        'call("aten::mm");',
        'const Row row = {"spmd::*", 1};',
        'if (node.op == "mm") {}',
        'if ("embedding" != call.op) {}',
        'if (op.handle.operator_name().name == "embedding") {}',
        'if (absl::StrContains(node.op, "conv")) {}',
        'if (call.op.find("conv") != npos) {}',
        'if (node->name().find("mm") == 0) {}',
    ],
)
def test_a_name_is_found(code):
    assert [line for line, _ in check_op_names.names_in(f"\n{code}\n", KNOWN)] == [2]


@pytest.mark.parametrize(
    "code",
    [
        '// like "aten::mm"',
        'if (op.starts_with("aten::")) {}',  # a namespace
        'Error("expected the name of an op, like aten::mm");',
        'attributes.Find("mm");',
        'if (argument.name == "mm") {}',
        "if (node.op == rules::kNone) {}",
    ],
)
def test_other_literals_pass(code):
    assert list(check_op_names.names_in(code, KNOWN)) == []


def test_violations_name_file_and_line(tmp_path):
    (tmp_path / "csrc/rules/tables").mkdir(parents=True)
    (tmp_path / "csrc/partition").mkdir()
    schema = '    {Family::kMatmul, "aten::mm(Tensor self, Tensor mat2) -> Tensor"},\n'
    (tmp_path / "csrc/rules/signatures.inc").write_text(schema)
    (tmp_path / "csrc/rules/tables/matmul.cc").write_text('Row row = Product("aten::mm");\n')
    (tmp_path / "csrc/partition/a.cc").write_text('\nbool x = node.op == "aten::mm";\n')
    (tmp_path / "csrc/rules/tables/b.cc").write_text('bool x = call.op == "aten::mm";\n')
    found = check_op_names.violations(tmp_path)
    assert found[0].startswith('csrc/partition/a.cc:2: "aten::mm" names an op')
    assert found[1].startswith(
        'csrc/rules/tables/b.cc:1: compares the name of an op with "aten::mm"'
    )
    assert all(line.startswith("tools/check_op_names.py: ") for line in found[2:])
