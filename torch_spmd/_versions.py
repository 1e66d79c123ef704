# SPDX-License-Identifier: Apache-2.0
"""The versions of PyTorch that the package is tested with, and where builds for one version go.

`setup.py`, CMake and the tools read this file, so it imports neither PyTorch nor the package.

    python torch_spmd/_versions.py build        # the build folder of the installed PyTorch
    python torch_spmd/_versions.py extension    # the folder of its extension
"""

from __future__ import annotations

import importlib.util
import re
import sys
from pathlib import Path

VERSION = "0.1.0"
OLDEST = "2.11"
NEWEST = "2.15"
RECOMMENDED = "2.13.0"


def minor(version: str) -> tuple[int, int]:
    """The first two numbers of a version."""
    major, second = version.split(".")[:2]
    return int(major), int(second)


def is_newer_than_tested(version: str) -> bool:
    return minor(version) > minor(NEWEST)


def untested(version: str) -> str:
    """What a build and an import say once where PyTorch is newer than any tested version."""
    return (
        f"torch_spmd is tested with PyTorch {OLDEST} to {NEWEST}, and this is {version}; it may "
        "work, and tests/python finds what does not"
    )


def installed() -> str | None:
    """The version of the PyTorch that this interpreter would import; None if there is none."""
    spec = importlib.util.find_spec("torch")
    if spec is None or spec.origin is None:
        return None
    text = Path(spec.origin).with_name("version.py").read_text()
    found = re.search(r"^__version__ = '([^']+)'", text, re.MULTILINE)
    return found[1] if found else None


def extension_folder(version: str) -> str:
    """The folder within the package that has the extension `_C` for one version of PyTorch."""
    return "_torch_" + re.sub(r"\W", "_", version.partition("+")[0])


def build_folder(version: str) -> str:
    """Where CMake builds, below the root of the checkout."""
    release = version.partition("+")[0]
    ours = "" if release == RECOMMENDED else f"-torch-{release}"
    return f"build/{sys.implementation.cache_tag}{ours}"


if __name__ == "__main__":
    print({"build": build_folder, "extension": extension_folder}[sys.argv[1]](installed() or ""))
