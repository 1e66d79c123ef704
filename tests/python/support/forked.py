# SPDX-License-Identifier: Apache-2.0
"""Python processes that are forked from one that has loaded PyTorch.

To start Python and to load torch and what its optimizers import takes three seconds of a processor,
and tests start hundreds of processes. Each process that runs tests has a server, which has loaded
all that, and not torch_spmd; a process is a copy of it that runs its script as `python` would.

What differs from a process that Python has started: the copies have one seed of hashes and one
layout of memory, and torch has read the environment of the tests. `start` returns None where that
would be noticed, and some tests start Python: of what is imported (api/test_imports.py), and jobs
of two processes with the examples (processes/test_job_examples.py).
"""

from __future__ import annotations

import atexit
import contextlib
import gc
import json
import os
import select
import signal
import subprocess
import sys
import time
import types
from collections.abc import Mapping, Sequence
from typing import IO, Any

# Variables that nothing reads before torch_spmd is loaded. Where another one differs from the
# server's, Python is started.
_READ_LATER = ("SPMD_", "TORCHELASTIC_", "MASTER_", "GLOO_SOCKET_IFNAME", "PYTHONPATH", "COLUMNS")
_READ_LATER += ("RANK", "LOCAL_RANK", "WORLD_SIZE", "LOCAL_WORLD_SIZE", "PYTHONUNBUFFERED")
# pytest changes it with every test.
_READ_LATER += ("PYTEST_CURRENT_TEST",)


class Process:
    """A forked process, with what `subprocess.Popen` has."""

    def __init__(self, server: _Server, pid: int) -> None:
        self._server, self.pid = server, pid
        self.returncode: int | None = None

    def poll(self) -> int | None:
        if self.returncode is None:
            self._server.listen(0)
            self.returncode = self._server.ended.pop(self.pid, None)
        return self.returncode

    def wait(self, timeout: float | None = None) -> int:
        end = None if timeout is None else time.monotonic() + timeout
        while (code := self.poll()) is None:
            left = None if end is None else end - time.monotonic()
            if left is not None and left <= 0:
                raise subprocess.TimeoutExpired(f"process {self.pid}", timeout or 0)
            self._server.listen(left)
        return code

    def send_signal(self, number: int) -> None:
        if self.poll() is None:
            with contextlib.suppress(ProcessLookupError):
                os.kill(self.pid, number)

    def kill(self) -> None:
        self.send_signal(signal.SIGKILL)


def start(
    arguments: Sequence[str],
    env: Mapping[str, str],
    cwd: str | None,
    out: IO[Any],
    err: IO[Any],
) -> Process | None:
    """Runs `python *arguments` in a session of its own, with output into two files that have names.

    None if that would not be the same in a forked process: if options are given, or variables of
    the environment that are read while torch is loaded.
    """
    if arguments[0] not in ("-c", "-m") and arguments[0].startswith("-"):
        return None
    global _server
    if _server is None:
        _server = _Server()
    if env.get("SPMD_TORCH_XLA") == "1" or _early(env) != _early(_server.env):
        return None
    return _server.start(
        arguments=arguments,
        env=dict(env),
        cwd=cwd or os.getcwd(),
        out=os.path.abspath(out.name),
        err=os.path.abspath(err.name),
    )


def _early(env: Mapping[str, str]) -> dict[str, str]:
    return {name: value for name, value in env.items() if not name.startswith(_READ_LATER)}


class _Server:
    def __init__(self) -> None:
        self.env = {
            k: v for k, v in os.environ.items() if not k.startswith(("SPMD_", "PYTHONPATH"))
        }
        self.ended: dict[int, int] = {}
        self._started: list[int] = []
        self._text = b""
        self._process = subprocess.Popen(
            [sys.executable, "-u", __file__],
            env=self.env,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            start_new_session=True,
        )
        atexit.register(self._stop)

    def start(self, **request: Any) -> Process:
        assert self._process.stdin is not None
        self._process.stdin.write(json.dumps(request).encode() + b"\n")
        self._process.stdin.flush()
        while not self._started:
            self.listen(None)
        return Process(self, self._started.pop())

    def listen(self, limit: float | None) -> None:
        """Reads what the server says, waiting for at most `limit` seconds."""
        assert self._process.stdout is not None
        fd = self._process.stdout.fileno()
        if not select.select([fd], [], [], limit)[0]:
            return
        text = os.read(fd, 1 << 16)
        assert text, "the server of tests/python/support/forked.py has ended"
        *lines, self._text = (self._text + text).split(b"\n")
        for line in lines:
            what, pid, code = line.split()
            if what == b"started":
                self._started.append(int(pid))
            else:
                self.ended[int(pid)] = int(code)

    def _stop(self) -> None:
        assert self._process.stdin is not None
        self._process.stdin.close()
        self._process.wait()


_server: _Server | None = None


def _serve() -> tuple[types.CodeType, dict[str, Any]]:
    """Forks a process for every line that it reads. Returns in these, with a program and its
    globals, and in the server when there are no more lines."""
    import numpy as np

    # Triton, loaded here, would tell every copy's stderr what it has left behind. A copy that
    # imports it itself is silent, as Python is.
    sys.modules["triton"] = None
    import torch._dynamo  # noqa: F401  (which optimizers import)

    del sys.modules["triton"]
    assert "torch_spmd" not in sys.modules
    assert len(os.listdir("/proc/self/task")) == 1, "threads are lost in a forked process"
    replies = os.dup(1)
    signal.signal(signal.SIGINT, signal.SIG_IGN)

    def reap(*_: object) -> None:
        with contextlib.suppress(ChildProcessError):
            while (ended := os.waitpid(-1, os.WNOHANG))[0]:
                code = os.waitstatus_to_exitcode(ended[1])
                os.write(replies, f"ended {ended[0]} {code}\n".encode())

    signal.signal(signal.SIGCHLD, reap)
    gc.collect()
    gc.freeze()  # so that collections do not copy what is shared
    for line in sys.stdin:
        pid = os.fork()
        if pid:
            os.write(replies, f"started {pid} 0\n".encode())
            continue
        os.close(replies)
        signal.signal(signal.SIGCHLD, signal.SIG_DFL)
        signal.signal(signal.SIGINT, signal.default_int_handler)
        np.random.seed()
        return _become(**json.loads(line))
    os._exit(0)


def _become(
    arguments: list[str], env: dict[str, str], cwd: str, out: str, err: str
) -> tuple[types.CodeType, dict[str, Any]]:
    """Makes this process what it would be if `python *arguments` had been started."""
    os.setsid()
    os.chdir(cwd)
    os.environ.clear()
    os.environ.update(env)
    flags = os.O_WRONLY | os.O_APPEND
    for fd, (name, how) in enumerate(((os.devnull, os.O_RDONLY), (out, flags), (err, flags))):
        file = os.open(name, how)
        os.dup2(file, fd)
        os.close(file)
    main = types.ModuleType("__main__")
    sys.modules["__main__"] = main
    first, *rest = arguments
    if first == "-c":
        text, name, folder = rest[0], "<string>", ""
        sys.argv = ["-c", *rest[1:]]
    elif first == "-m":
        text = f"import runpy; runpy.run_module({rest[0]!r}, run_name='__main__', alter_sys=True)"
        name, folder = "<string>", cwd
        sys.argv = ["-m", *rest[1:]]
    else:
        name, folder = first, os.path.dirname(os.path.abspath(first))
        with open(first, encoding="utf-8") as file:
            text = file.read()
        main.__file__ = os.path.abspath(first)
        sys.argv = [first, *rest]
    more = [path or cwd for path in env.get("PYTHONPATH", "").split(os.pathsep)]
    sys.path[:1] = [folder, *(more if "PYTHONPATH" in env else [])]
    return compile(text, name, "exec"), main.__dict__


if __name__ == "__main__":
    exec(*_serve())
