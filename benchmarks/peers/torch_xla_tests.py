# SPDX-License-Identifier: Apache-2.0
"""Runs the SPMD tests of a checkout of pytorch/xla against `torch_spmd.torch_xla`.

    git clone --depth 1 -b v2.9.0 https://github.com/pytorch/xla
    python -m benchmarks.peers.torch_xla_tests xla --devices 1 4 8

Prints the counts per file and number of devices, and with --failures what failed. Nothing of the
checkout is copied or changed. It needs absl-py and pytest. `test_train_spmd_linear_model.py` runs
with smaller sizes than its own, which take minutes per step.
"""

from __future__ import annotations

import argparse
import os
import re
import signal
import subprocess
import sys
import tempfile
import time
import warnings
from pathlib import Path
from typing import NoReturn

# Scripts without tests, and the base class.
NOT_TESTS = (
    "test_sharding_strategies.py",
    "test_train_spmd_imagenet.py",
    "test_xla_sharding_base.py",
)
SMALL = ["--input_dim", "256", "--train_dataset_len", "1024"]
KINDS = ("passed", "failed", "error", "skipped")


def run(folder: Path, file: str, devices: int, limit: int) -> tuple[dict[str, int], list[str]]:
    """The counts of a file, and its tests that did not pass, from a fork of this process."""
    with tempfile.TemporaryDirectory() as scratch:
        path = Path(scratch) / "printed"
        child = os.fork()
        if child == 0:
            _test(folder, file, scratch, path)
        end = time.monotonic() + limit
        while os.waitpid(child, os.WNOHANG)[0] == 0:
            if time.monotonic() > end:
                os.kill(child, signal.SIGKILL)
                os.waitpid(child, 0)
                return {"error": 1}, [f"ERROR {file}: longer than {limit} seconds"]
            time.sleep(0.1)
        printed = path.read_text(errors="replace")
    last = printed.strip().splitlines()[-1] if printed.strip() else ""
    counts = {
        kind: int(found[1]) if (found := re.search(rf"(\d+) {kind}", last)) else 0 for kind in KINDS
    }
    if not any(counts.values()):
        return {"error": 1}, [f"ERROR {file}: the process ended; it printed last: {last}"]
    return counts, re.findall(r"^(?:FAILED|ERROR) .*", printed, re.MULTILINE)


def _test(folder: Path, file: str, scratch: str, printed: Path) -> NoReturn:
    """Runs a file's tests in this process, which ends with it."""
    out = os.open(printed, os.O_WRONLY | os.O_CREAT)
    os.dup2(out, 1)
    os.dup2(out, 2)
    os.chdir(folder)
    sys.path.insert(0, str(folder))
    if file in ("test_spmd_graph_dump.py", "test_spmd_lowering_context.py"):
        os.environ["XLA_SAVE_TENSORS_FILE"] = f"{scratch}/tensors"
        os.environ["XLA_SAVE_TENSORS_FMT"] = "hlo"
    sys.argv = [file, *(SMALL if file == "test_train_spmd_linear_model.py" else [])]
    status = 1
    try:
        import pytest

        status = int(pytest.main([str(folder / file), "-rfE", "-q", "-pno:cacheprovider"]))
    finally:
        sys.stdout.flush()
        sys.stderr.flush()
        os._exit(status)


def _prepare(devices: int) -> None:
    """The environment that is read when modules are imported, and the modules."""
    os.environ.update(
        SPMD_NUM_DEVICES=str(devices),
        PJRT_DEVICE=os.environ.get("PJRT_DEVICE", "CPU"),
        COLUMNS="200",  # of pytest's lines
        PYTHONWARNINGS="ignore",
    )
    sys.dont_write_bytecode = True
    warnings.simplefilter("ignore")
    import pytest  # noqa: F401

    import torch_spmd.torch_xla.install  # noqa: F401


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("checkout", type=Path, help="the root of a checkout of pytorch/xla")
    parser.add_argument("--devices", type=int, nargs="+", default=[1, 4, 8])
    parser.add_argument("--files", nargs="+", help="names of files in test/spmd; default all")
    parser.add_argument("--failures", action="store_true", help="print what did not pass")
    parser.add_argument("--limit", type=int, default=900, help="seconds that a file may take")
    options = parser.parse_args()
    folder = (options.checkout / "test" / "spmd").resolve()
    if not folder.is_dir():
        parser.error(f"{folder} does not exist; give the root of a checkout of pytorch/xla")
    files = options.files or sorted(
        path.name for path in folder.glob("test_*.py") if path.name not in NOT_TESTS
    )
    if len(options.devices) > 1:
        for devices in options.devices:
            # A process each: how many devices there are is read when torch_spmd is imported.
            more = [*sys.argv[1:], "--devices", str(devices)]  # the last one counts
            subprocess.run([sys.executable, "-m", "benchmarks.peers.torch_xla_tests", *more])
        return
    (devices,) = options.devices
    _prepare(devices)
    print(f"{'file':45} devices " + " ".join(f"{kind:>8}" for kind in KINDS), flush=True)
    total = dict.fromkeys(KINDS, 0)
    for file in files:
        counts, failures = run(folder, file, devices, options.limit)
        total = {kind: total[kind] + counts.get(kind, 0) for kind in KINDS}
        _row(file, devices, counts)
        for failure in failures if options.failures else ():
            print(f"    {failure}")
    _row("all", devices, total)


def _row(name: str, devices: int, counts: dict[str, int]) -> None:
    cells = " ".join(f"{counts.get(kind, 0):8}" for kind in KINDS)
    print(f"{name:45} {devices:7} {cells}", flush=True)


if __name__ == "__main__":
    main()
