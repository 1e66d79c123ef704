# SPDX-License-Identifier: Apache-2.0
"""tools/check_tests.py: the repository passes, and a source without a test is found."""

import importlib.util
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[3]
spec = importlib.util.spec_from_file_location("check_tests", ROOT / "tools" / "check_tests.py")
check_tests = importlib.util.module_from_spec(spec)
spec.loader.exec_module(check_tests)


def write(root, path):
    (root / path).parent.mkdir(parents=True, exist_ok=True)
    (root / path).write_text("")


def test_every_source_of_the_compiler_has_a_test():
    assert check_tests.problems(ROOT) == []


@pytest.mark.parametrize(
    ("source", "test"),
    [
        ("util/box.cc", "cpp/util/box_test.cc"),
        ("program/one_place/turns.cc", "cpp/program/one_place/turns_test.cc"),
        ("rules/tables/view.cc", "cpp/rules/view_test.cc"),
        ("rules/tables/view.cc", "golden/rules/view.txt"),
        ("partition/choose.cc", "golden/choose/terms_meet.txt"),
    ],
)
def test_a_test_of_the_name_counts(tmp_path, source, test):
    write(tmp_path, f"csrc/{source}")
    assert len(check_tests.problems(tmp_path)) == 1
    write(tmp_path, f"tests/{test}")
    assert check_tests.problems(tmp_path) == []


def test_a_test_of_another_folder_does_not_count(tmp_path):
    write(tmp_path, "csrc/program/parser.cc")
    write(tmp_path, "tests/cpp/ir/parser_test.cc")
    (found,) = check_tests.problems(tmp_path)
    assert found == (
        "csrc/program/parser.cc: there is no test of its name, as tests/golden/program/parser.txt"
    )


def test_the_test_that_a_reason_names_exists(tmp_path, monkeypatch):
    monkeypatch.setattr(check_tests, "SHOWN_ELSEWHERE", {"partition/part.cc": "golden/whole"})
    write(tmp_path, "csrc/partition/part.cc")
    assert check_tests.problems(tmp_path) == [
        "csrc/partition/part.cc: its test tests/golden/whole does not exist"
    ]
    write(tmp_path, "tests/golden/whole/a.txt")
    assert check_tests.problems(tmp_path) == []
