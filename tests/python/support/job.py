# SPDX-License-Identifier: Apache-2.0
"""Jobs of several processes, over loopback, each with a hard time limit.

A script is started once per process, with the environment that torchrun would set. Processes are
killed by the ids that were started, whatever they do.
"""

import contextlib
import os
import signal
import socket
import subprocess
import sys
import tempfile
import time
from dataclasses import dataclass
from pathlib import Path

import forked

ROOT = Path(__file__).resolve().parents[3]


@dataclass
class Ended:
    """How one process has ended."""

    code: int
    out: str
    err: str


def free_port():
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return probe.getsockname()[1]


def environment(rank, processes, port, **more):
    own = {
        "RANK": str(rank),
        "LOCAL_RANK": str(rank),
        "WORLD_SIZE": str(processes),
        "LOCAL_WORLD_SIZE": str(processes),
        "MASTER_ADDR": "127.0.0.1",
        "MASTER_PORT": str(port),
        "GLOO_SOCKET_IFNAME": "lo",
        "OMP_NUM_THREADS": "1",
        "SPMD_TIMEOUT": "8",
        "PYTHONPATH": os.pathsep.join([str(ROOT), os.environ.get("PYTHONPATH", "")]),
        "PYTHONUNBUFFERED": "1",
    }
    # Whoever runs the tests on GPUs sets these.
    chosen = {k: os.environ[k] for k in ("SPMD_BACKEND", "SPMD_NUM_DEVICES") if k in os.environ}
    kept = {k: v for k, v in os.environ.items() if not k.startswith(("SPMD_", "TORCHELASTIC"))}
    return {**kept, **own, **chosen, **more}


class Job:
    """The processes of a script. Used as a context manager, which ends them all.

    They are forked from one that has loaded PyTorch, unless they are to be `fresh`."""

    def __init__(self, script, processes=2, arguments=(), fresh=False, **variables):
        self.folder = tempfile.TemporaryDirectory()
        if not isinstance(script, Path):
            path = Path(self.folder.name) / "train.py"
            path.write_text(script)
            script = path
        port = free_port()
        self.files = []
        self.processes = []
        for rank in range(processes):
            out, err = (self._file(rank, kind).open("w") for kind in ("out", "err"))
            self.files.append((out, err))
            own = {k: v(rank) if callable(v) else v for k, v in variables.items()}
            env = environment(rank, processes, port, **own)
            self.processes.append(self._start([str(script), *arguments], env, out, err, fresh))

    def _start(self, arguments, env, out, err, fresh):
        forked_one = None if fresh else forked.start(arguments, env, self.folder.name, out, err)
        return forked_one or subprocess.Popen(
            [sys.executable, *arguments],
            env=env,
            stdout=out,
            stderr=err,
            start_new_session=True,
            # A shell that runs the tests in the background makes its children ignore it.
            preexec_fn=lambda: signal.signal(signal.SIGINT, signal.default_int_handler),
            cwd=self.folder.name,
        )

    def __enter__(self):
        return self

    def __exit__(self, *_):
        for process in self.processes:
            if process.poll() is None:
                with contextlib.suppress(ProcessLookupError):
                    process.send_signal(signal.SIGCONT)
                    process.kill()
                process.wait()
        for pair in self.files:
            for file in pair:
                file.close()
        self.folder.cleanup()

    def _file(self, rank, kind):
        return Path(self.folder.name, f"{rank}.{kind}")

    def signal(self, rank, number):
        self.processes[rank].send_signal(number)

    def out(self, rank):
        return self._file(rank, "out").read_text()

    def wait_for(self, rank, text, limit=60):
        """Waits until the process has printed `text`."""
        end = time.monotonic() + limit
        while text not in self.out(rank):
            assert time.monotonic() < end, f"process {rank} has not printed {text!r}"
            assert self.processes[rank].poll() is None, self.ended(rank)
            time.sleep(0.02)

    def ended(self, rank):
        process = self.processes[rank]
        texts = [self._file(rank, kind).read_text() for kind in ("out", "err")]
        return Ended(process.returncode, *texts)

    def wait(self, limit=60, ranks=None):
        """How the processes end, all within `limit` seconds."""
        end = time.monotonic() + limit
        ranks = range(len(self.processes)) if ranks is None else ranks
        for rank in ranks:
            try:
                self.processes[rank].wait(max(0.1, end - time.monotonic()))
            except subprocess.TimeoutExpired:
                raise AssertionError(
                    f"process {rank} is still there after {limit} s: {self.ended(rank)}"
                ) from None
        return [self.ended(rank) for rank in ranks]


def run(script, processes=2, limit=60, arguments=(), fresh=False, **variables):
    """Runs a script and returns how each process ended."""
    with Job(script, processes, arguments, fresh, **variables) as job:
        return job.wait(limit)
