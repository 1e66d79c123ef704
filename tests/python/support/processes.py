# SPDX-License-Identifier: Apache-2.0
"""Python in a process of its own."""

from __future__ import annotations

import os
import subprocess
import sys
import textwrap
from pathlib import Path


def run_python(
    *arguments: str | Path, cwd: Path | None = None, **environment: str
) -> subprocess.CompletedProcess[str]:
    """Runs Python with this process's environment and `environment`. Output and errors are text.

    >>> run_python("-c", "import os; print(os.environ['N'])", N="3").stdout
    '3\\n'
    """
    command = [sys.executable, *map(str, arguments)]
    env = os.environ | environment
    return subprocess.run(command, cwd=cwd, env=env, capture_output=True, text=True)


def run_script(script: str, **environment: str) -> subprocess.CompletedProcess[str]:
    """Runs a program, which may be indented. Asserts that it succeeds."""
    done = run_python("-c", textwrap.dedent(script), **environment)
    assert done.returncode == 0, done.stderr
    return done
