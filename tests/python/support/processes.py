# SPDX-License-Identifier: Apache-2.0
"""Python in a process of its own."""

from __future__ import annotations

import os
import subprocess
import sys
import tempfile
import textwrap
from pathlib import Path

import forked


def run_python(
    *arguments: str | Path, cwd: Path | None = None, fresh: bool = False, **environment: str
) -> subprocess.CompletedProcess[str]:
    """Runs Python with this process's environment and `environment`. Output and errors are text.

    The process is forked from one that has loaded PyTorch, unless it is to be `fresh`: for tests
    of what is imported, and of how long that takes.

    >>> run_python("-c", "import os; print(os.environ['N'])", N="3").stdout
    '3\\n'
    """
    words = [*map(str, arguments)]
    env = os.environ | environment
    if not fresh:
        with tempfile.NamedTemporaryFile("r") as out, tempfile.NamedTemporaryFile("r") as err:
            process = forked.start(words, env, str(cwd) if cwd else None, out, err)
            if process is not None:
                try:
                    code = process.wait()
                finally:
                    process.kill()
                return subprocess.CompletedProcess(words, code, out.read(), err.read())
    return subprocess.run(
        [sys.executable, *words], cwd=cwd, env=env, capture_output=True, text=True
    )


def run_script(
    script: str, fresh: bool = False, **environment: str
) -> subprocess.CompletedProcess[str]:
    """Runs a program, which may be indented. Asserts that it succeeds."""
    done = run_python("-c", textwrap.dedent(script), fresh=fresh, **environment)
    assert done.returncode == 0, done.stderr
    return done
