# SPDX-License-Identifier: Apache-2.0
"""tools/site.py: the reference has every public name, and pages link to it."""

import importlib.util
import json
import re
import subprocess
import sys
from pathlib import Path

import pytest

import torch_spmd as spmd

ROOT = Path(__file__).resolve().parents[3]
file = importlib.util.spec_from_file_location("site_hook", ROOT / "tools/site.py")
site = importlib.util.module_from_spec(file)
file.loader.exec_module(site)


def test_the_names_are_those_of_the_modules():
    assert site.subjects()[0] == "spmd"
    for subject in site.subjects():
        module = spmd if subject == "spmd" else getattr(spmd, subject)
        subjects = site.subjects() if module is spmd else ()
        assert set(site.names_of(subject)) == set(module.__all__) - set(subjects)


def test_each_subject_has_a_page_that_the_site_lists():
    listed = (ROOT / "mkdocs.yml").read_text()
    for subject in site.subjects():
        page = (ROOT / f"docs/api/{subject}.md").read_text()
        some = " ".join(re.findall(rf"<!-- names: {subject}: (.*?) -->", page)).split()
        assert sorted(some) == sorted(site.names_of("spmd")) or f"<!-- names: {subject} -->" in page
        assert f"api/{subject}.md" in listed


def test_public_names_in_the_text_are_links():
    page = "# `spmd.fsdp`\n`spmd.lax.psum`, `spmd.fsdp(model)`, [`spmd.save`](a.md), `spmd.odd`\n"
    assert site.linked(page + "```python\n`spmd.fsdp`\n```\n") == (
        "# `spmd.fsdp`\n[`spmd.lax.psum`][torch_spmd.lax.psum], "
        "[`spmd.fsdp(model)`][torch_spmd.fsdp], [`spmd.save`](a.md), `spmd.odd`\n"
        "```python\n`spmd.fsdp`\n```\n"
    )


def test_errors_are_found_by_their_first_words():
    table = site.message_table()
    for words in (
        "config.update: there is no setting …",  # Python
        "mark_sharding: no spec was given; write mark_sharding(t, mesh, spec)",
        "set_backend('",  # C++
    ):
        assert f"| `{words}" in table
    assert len(table.splitlines()) > 300


@pytest.fixture(scope="module")
def built(tmp_path_factory):
    pytest.importorskip("mkdocstrings")
    folder = tmp_path_factory.mktemp("site")
    command = [sys.executable, "-m", "mkdocs", "build", "--strict", "--quiet", "-d", str(folder)]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    return folder


def test_every_public_name_has_a_place_with_its_signature(built):
    for subject in site.subjects():
        page = (built / f"api/{subject}.html").read_text()
        where = "torch_spmd" if subject == "spmd" else f"torch_spmd.{subject}"
        for name in site.names_of(subject):
            assert f'id="{where}.{name}"' in page, name
    text = re.sub(r"<[^>]+>", "", (built / "api/spmd.html").read_text())
    assert re.search(r"reshard\(\s*t: Tensor, mesh: Mesh \| None, spec: SpecLike\s*\)", text)


def test_the_start_page_has_its_pictures(built):
    page = (built / "index.html").read_text()
    assert "<svg" in page and "all_reduce" in page and page.count('class="picture"') == 3
    assert 'href="api/spmd.html#torch_spmd.' in (built / "processes.html").read_text()


def test_the_search_finds_names_settings_and_errors(built):
    """By whole words, as the search of the site divides its pages."""
    index = json.loads((built / "search/search_index.json").read_text())
    text = " ".join(re.sub("<[^>]+>", " ", f"{d['title']} {d['text']}") for d in index["docs"])
    words = set(re.split(index["config"]["separator"], text))
    names = {name.rpartition(".")[2] for name in site.public_names()}
    variables = set(re.findall(r"`(SPMD_[A-Z_]+)", (ROOT / "docs/settings.md").read_text()))
    assert len(variables) > 10 and names | variables <= words
    assert "no spec was given; write mark_sharding" in text
