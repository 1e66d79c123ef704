# SPDX-License-Identifier: Apache-2.0
"""Files that a forge reads say what the project says elsewhere."""

import re
import shutil
import subprocess


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


def release(folder, version):
    return subprocess.run(
        [folder / "tools/release", version], cwd=folder, capture_output=True, text=True
    )


def test_a_release_sets_the_version_everywhere_and_tags_it(root, tmp_path):
    """A copy of the files that name the version is released twice."""
    folder = tmp_path / "copy"
    for name in ("pyproject.toml", "CITATION.cff", "torch_spmd/_versions.py"):
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        shutil.copy(root / name, folder / name)
    (folder / "CHANGELOG.md").write_text("# Changelog\n\n## Unreleased\n\n- Faster.\n")
    (folder / "tools").mkdir()
    shutil.copy(root / "tools/release", folder / "tools/release")

    def git(*words):
        identity = ("-c", "user.name=A", "-c", "user.email=a@example.org")
        done = subprocess.run(
            ["git", *identity, *words], cwd=folder, capture_output=True, text=True, check=True
        )
        return done.stdout

    git("init", "--quiet")
    git("config", "user.name", "A")
    git("config", "user.email", "a@example.org")
    git("add", ".")
    git("commit", "--quiet", "-m", "All files")
    [old] = re.findall(r'^version = "(.*)"$', (folder / "pyproject.toml").read_text(), re.MULTILINE)
    assert "is not newer" in release(folder, old).stderr
    assert "usage" in release(folder, "1.0").stderr
    (folder / "CITATION.cff").write_text((folder / "CITATION.cff").read_text() + "\n")
    assert "differ" in release(folder, "99.0.0").stderr
    git("checkout", "--quiet", ".")

    done = release(folder, "99.0.0")
    assert done.returncode == 0, done.stderr
    assert git("tag").split() == ["v99.0.0"]
    assert git("log", "--format=%s", "-1").strip() == "Release 99.0.0"
    said = git("show", "--format=", "--unified=0")
    assert len(re.findall(r"^\+.*\b99\.0\.0\b", said, re.MULTILINE)) == 4
    assert "says nothing" in release(folder, "99.0.1").stderr
