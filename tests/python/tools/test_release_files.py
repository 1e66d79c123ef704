# SPDX-License-Identifier: Apache-2.0
"""Files that a forge reads say what the project says elsewhere."""

import re


def test_the_workflow_runs_both_commands_with_the_pairs_of_tools_versions(root):
    workflow = (root / ".github/workflows/test.yml").read_text()
    matrix = re.findall(r'- \{torch: ([\d.]+), python: "([\d.]+)"\}', workflow)
    [pairs] = re.findall(r"^PAIRS=\((.*)\)$", (root / "tools/versions").read_text(), re.MULTILINE)
    assert [":".join(pair) for pair in matrix] == pairs.split()
    commands = re.findall(r"^./tools/\w+", (root / "README.md").read_text(), re.MULTILINE)
    assert re.findall(r"run: (.*)", workflow) == commands == ["./tools/train", "./tools/test"]


def test_the_citation_has_the_version_and_license_of_the_package(root):
    citation = (root / "CITATION.cff").read_text()
    project = (root / "pyproject.toml").read_text()
    for name in ("version", "license"):
        [said] = re.findall(rf"^{name}: (.*)$", citation, re.MULTILINE)
        [real] = re.findall(rf'^{name} = "(.*)"$', project, re.MULTILINE)
        assert said == real
