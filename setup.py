# SPDX-License-Identifier: Apache-2.0
"""Builds the extension `torch_spmd._C` with CMake and Ninja against the installed torch.

    pip install --no-build-isolation .        # or -e .

Environment variables:
    MAX_JOBS               parallel compile jobs (default: Ninja's own choice)
    TORCH_SPMD_TESTS       1 also configures the C++ tests (default 0)
    TORCH_SPMD_CMAKE_ARGS  more arguments for CMake, separated by spaces
"""

from __future__ import annotations

import os
import runpy
import shutil
import subprocess
import sys
from pathlib import Path
from types import SimpleNamespace

from setuptools import Extension, find_packages, setup
from setuptools.command.build_ext import build_ext

ROOT = Path(__file__).resolve().parent
_versions = SimpleNamespace(**runpy.run_path(str(ROOT / "torch_spmd" / "_versions.py")))


def installed_torch() -> str:
    """The version of the torch that this interpreter imports, or an error that says what to do."""
    version = _versions.installed()
    if version is None:
        raise SystemExit(
            f"torch_spmd builds against an installed torch, and {sys.executable} has none.\n"
            f"Run: pip install torch=={_versions.RECOMMENDED}\n"
            "then: pip install --no-build-isolation .\n"
            "(pip's build isolation hides an installed torch, hence the option.)"
        )
    if _versions.minor(version) < _versions.minor(_versions.OLDEST):
        raise SystemExit(
            f"torch_spmd needs torch {_versions.OLDEST} or later; found {version}.\n"
            f"Run: pip install torch=={_versions.RECOMMENDED}"
        )
    return str(version)


def required_program(name: str) -> str:
    """The path of a build tool: the one beside this interpreter, else the one on PATH."""
    beside = Path(sys.executable).parent / name
    found = str(beside) if beside.exists() else shutil.which(name)
    if not found:
        raise SystemExit(f"torch_spmd needs {name} to build. Run: pip install {name}")
    return found


class CMakeBuild(build_ext):
    """Configures and builds the target `_C`, and copies it where setuptools expects it.

    The CMake folder, one for each interpreter and version of torch, is kept, so a second build
    compiles only what changed. So is the extension: one checkout serves several versions.
    """

    def build_extension(self, ext: Extension) -> None:
        torch_version = installed_torch()
        cmake, ninja = required_program("cmake"), required_program("ninja")
        folder = ROOT / _versions.build_folder(torch_version)
        folder.mkdir(parents=True, exist_ok=True)
        self.forget_other_torch(folder, torch_version)

        tests = "ON" if os.environ.get("TORCH_SPMD_TESTS", "0") not in ("", "0", "OFF") else "OFF"
        subprocess.run(
            [
                cmake,
                *("-S", str(ROOT), "-B", str(folder), "-G", "Ninja"),
                f"-DCMAKE_MAKE_PROGRAM={ninja}",
                f"-DCMAKE_BUILD_TYPE={'Debug' if self.debug else 'Release'}",
                f"-DPython3_EXECUTABLE={sys.executable}",
                f"-DTORCH_SPMD_TESTS={tests}",
                "-DTORCH_SPMD_UNITY=ON",
                *os.environ.get("TORCH_SPMD_CMAKE_ARGS", "").split(),
            ],
            check=True,
        )
        jobs = os.environ.get("MAX_JOBS")
        subprocess.run(
            [cmake, "--build", str(folder), "--target", "_C", *(["-j", jobs] if jobs else [])],
            check=True,
        )
        (built,) = (folder / "csrc" / "python").glob("_C*.so")
        target = Path(self.get_ext_fullpath(ext.name))
        for stale in target.parent.parent.glob("_torch_*"):  # of a version that was built before
            shutil.rmtree(stale)
        target.parent.mkdir(parents=True)
        shutil.copy2(built, target)

    def copy_extensions_to_source(self) -> None:
        (ROOT / "torch_spmd" / _FOLDER).mkdir(exist_ok=True)
        super().copy_extensions_to_source()

    @staticmethod
    def forget_other_torch(folder: Path, torch_version: str) -> None:
        """Drops CMake's cache where it was made for another interpreter or torch."""
        stamp = folder / "made_for.txt"
        made_for = f"{sys.executable} torch {torch_version}\n"
        if not stamp.exists() or stamp.read_text() != made_for:
            (folder / "CMakeCache.txt").unlink(missing_ok=True)
            stamp.write_text(made_for)


# Without torch the build ends with an error that says so.
_FOLDER = _versions.extension_folder(_versions.installed() or "")

setup(
    packages=find_packages(include=["torch_spmd", "torch_spmd.*"]),
    py_modules=["torch_spmd_autoload"],
    package_data={"torch_spmd": ["py.typed", "*.pyi"], "torch_spmd.debug": ["*.html"]},
    ext_modules=[Extension(f"torch_spmd.{_FOLDER}._C", sources=[])],
    cmdclass={"build_ext": CMakeBuild},
)
