# SPDX-License-Identifier: Apache-2.0
"""Which versions of PyTorch the package is loaded with, and what it says about others."""

import re
import warnings
from pathlib import Path

import pytest
import torch

import torch_spmd
from torch_spmd import _C, _loading, _versions

FOLDER = Path(torch_spmd.__file__).parent


def test_the_extension_is_the_one_for_this_pytorch():
    assert Path(_C.__file__).parent == FOLDER / _versions.extension_folder(torch.__version__)


def test_a_tested_version_is_loaded_without_a_word():
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        _loading.find_extension([])


def test_a_newer_version_is_loaded_with_one_warning(monkeypatch):
    monkeypatch.setattr(_versions, "NEWEST", "2.10")
    with pytest.warns(UserWarning) as caught:
        _loading.find_extension(path := [])
    assert path == [str(FOLDER / _versions.extension_folder(torch.__version__))]
    assert [str(warning.message) for warning in caught] == [
        f"torch_spmd is tested with PyTorch 2.11 to 2.10, and this is {torch.__version__}; it may "
        "work, and tests/python finds what does not"
    ]


def test_a_version_that_it_is_not_built_for_is_refused(monkeypatch):
    monkeypatch.setattr(torch, "__version__", "2.99.1+cpu")
    with pytest.raises(ImportError) as caught:
        _loading.find_extension([])
    here = re.escape(torch_version())
    assert re.fullmatch(
        rf"torch_spmd is built for PyTorch (.* and )?{here}( and .*)?, and this is 2\.99\.1\+cpu; "
        r"build it in its checkout: pip install --no-build-isolation --no-deps \.",
        str(caught.value),
    )


def torch_version():
    return _versions.installed().partition("+")[0]


@pytest.mark.parametrize(
    ("version", "newer"),
    [("2.11.0", False), ("2.15.3+cu132", False), ("2.16.0.dev20261101", True), ("3.0.0", True)],
)
def test_newer_than_tested(version, newer):
    assert _versions.is_newer_than_tested(version) == newer


def test_builds_for_several_versions_have_folders_of_their_own():
    assert _versions.extension_folder("2.13.0+cpu") == "_torch_2_13_0"
    assert _versions.extension_folder("2.16.0.dev20261101+cpu") == "_torch_2_16_0_dev20261101"
    folders = {_versions.build_folder(v) for v in ("2.13.0+cpu", "2.13.0", "2.15.0+cu132")}
    assert len(folders) == 2


def test_the_installed_version_is_found_without_its_import():
    assert _versions.installed() == torch.__version__
