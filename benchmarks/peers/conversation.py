# SPDX-License-Identifier: Apache-2.0
"""A process that reads questions as lines of JSON and answers in lines of JSON.

Everything else that it prints goes to its standard error.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import traceback
from collections.abc import Callable
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[2]
Message = dict[str, Any]


class Child:
    """Runs `python -m module` with additional environment variables; its first line is its
    `greeting`.

    Errors: RuntimeError if it ends instead of answering, or if its answer is an error.
    """

    def __init__(self, python: str, module: str, **environment: str) -> None:
        path = os.pathsep.join(filter(None, (str(ROOT), os.environ.get("PYTHONPATH"))))
        self._what = f"{python} -m {module}"
        self._process = subprocess.Popen(
            [python, "-m", module],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
            cwd=ROOT,
            env=os.environ | {"PYTHONPATH": path} | environment,
        )
        self.greeting = self._answer()

    def ask(self, **question: Any) -> Message:
        assert self._process.stdin is not None
        self._process.stdin.write(json.dumps(question) + "\n")
        self._process.stdin.flush()
        return self._answer()

    def _answer(self) -> Message:
        assert self._process.stdout is not None
        line = self._process.stdout.readline()
        if not line:
            raise RuntimeError(f"{self._what} ended (exit code {self._process.wait()})")
        answer: Message = json.loads(line)
        if "error" in answer:
            raise RuntimeError(f"{self._what}: {answer['error']}")
        return answer

    def __enter__(self) -> Child:
        return self

    def __exit__(self, *_: object) -> None:
        """Ends the process by closing its input."""
        for pipe in (self._process.stdin, self._process.stdout):
            assert pipe is not None
            pipe.close()
        self._process.wait()


def add_python_option(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "--python", default=os.environ.get("SPMD_PEERS_PYTHON", sys.executable), metavar="PATH"
    )


def no_jax(python: str, reason: str) -> str:
    """The message if there is nothing to compare with."""
    return (
        f"skipped: no JAX in {python} ({reason}); name an interpreter that has it with "
        "--python or SPMD_PEERS_PYTHON"
    )


def serve(greet: Callable[[], Message], answer: Callable[..., Message]) -> None:
    """The other side: writes the greeting, then answers until its input ends. A greeting with
    `missing` is the only line that is written."""
    with os.fdopen(os.dup(1), "w") as replies:
        os.dup2(2, 1)
        greeting = greet()
        print(json.dumps(greeting), file=replies, flush=True)
        if "missing" in greeting:
            return
        for line in sys.stdin:
            try:
                reply = answer(**json.loads(line))
            except Exception:
                reply = {"error": traceback.format_exc()}
            print(json.dumps(reply), file=replies, flush=True)
