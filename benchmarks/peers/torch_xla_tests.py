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
import subprocess
import sys
import tempfile
from pathlib import Path

# Scripts without tests, and the base class.
NOT_TESTS = (
    "test_sharding_strategies.py",
    "test_train_spmd_imagenet.py",
    "test_xla_sharding_base.py",
)
SMALL = ["--input_dim", "256", "--train_dataset_len", "1024"]
KINDS = ("passed", "failed", "error", "skipped")
RUN = """
import sys
import torch_spmd.torch_xla.install
import pytest

arguments, more = sys.argv[1:5], sys.argv[5:]
sys.argv = [sys.argv[0], *more]
sys.exit(pytest.main(arguments))
"""


def run(folder: Path, file: str, devices: int, limit: int) -> tuple[dict[str, int], list[str]]:
    """The counts of a file, and its tests that did not pass."""
    with tempfile.TemporaryDirectory() as scratch:
        environment = os.environ | {
            "SPMD_NUM_DEVICES": str(devices),
            "PJRT_DEVICE": os.environ.get("PJRT_DEVICE", "CPU"),
            "PYTHONPATH": os.pathsep.join([os.environ.get("PYTHONPATH", os.getcwd()), str(folder)]),
            "PYTHONWARNINGS": "ignore",
            "PYTHONDONTWRITEBYTECODE": "1",
        }
        if file in ("test_spmd_graph_dump.py", "test_spmd_lowering_context.py"):
            environment["XLA_SAVE_TENSORS_FILE"] = f"{scratch}/tensors"
            environment["XLA_SAVE_TENSORS_FMT"] = "hlo"
        command = [sys.executable, "-c", RUN, str(folder / file), "-rA", "-q", "-pno:cacheprovider"]
        if file == "test_train_spmd_linear_model.py":
            command += SMALL
        try:
            done = subprocess.run(
                command, cwd=folder, env=environment, capture_output=True, text=True, timeout=limit
            ).stdout
        except subprocess.TimeoutExpired:
            return {"error": 1}, [f"ERROR {file}: longer than {limit} seconds"]
    last = done.strip().splitlines()[-1] if done.strip() else ""
    counts = {
        kind: int(found[1]) if (found := re.search(rf"(\d+) {kind}", last)) else 0 for kind in KINDS
    }
    return counts, re.findall(r"^(?:FAILED|ERROR) .*", done, re.MULTILINE)


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
    print(f"{'file':45} devices " + " ".join(f"{kind:>8}" for kind in KINDS))
    for devices in options.devices:
        total = dict.fromkeys(KINDS, 0)
        for file in files:
            counts, failures = run(folder, file, devices, options.limit)
            total = {kind: total[kind] + counts.get(kind, 0) for kind in KINDS}
            _row(file, devices, counts)
            if options.failures:
                print(*(f"    {failure}" for failure in failures), sep="\n")
        _row("all", devices, total)


def _row(name: str, devices: int, counts: dict[str, int]) -> None:
    cells = " ".join(f"{counts.get(kind, 0):8}" for kind in KINDS)
    print(f"{name:45} {devices:7} {cells}", flush=True)


if __name__ == "__main__":
    main()
