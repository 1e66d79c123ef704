# SPDX-License-Identifier: Apache-2.0
"""Jobs of several processes on this machine, each measured beside torch.distributed over Gloo.

    python -m benchmarks.processes                          # 2 and 4 processes; takes long
    python -m benchmarks.processes --processes 2 --only dp  # some of it

Both sides of a row run alternately in the same processes. Their CPU-seconds are those of all
threads of all processes; the last column is the ratio of the wall times. "dp" is compared with
DistributedDataParallel, "fsdp" with fully_shard, "tp" with parallelize_module, each on the GPT of
the speed table with the same batch; "all-reduce" with that of Gloo, without the pass over its
own data in which each process makes what is added. "agreement" is the time that a
step takes longer because the processes agree on it: that of a step that sends nothing, less the
time of the same step where each process works alone. The devices are one for each process, and in
the rows "n devices" several. Exits with 1 if a budget is missed.
"""

from __future__ import annotations

import argparse
import dataclasses
import json
import os
import signal
import socket
import statistics
import subprocess
import sys
import tempfile
from pathlib import Path

from benchmarks.speed import report
from benchmarks.speed.measure import Result

STRATEGIES = ("dp", "fsdp", "tp")
MICRO = ("all-reduce", "agreement")
AGREEMENT_BUDGET = 100.0  # µs for each step


def _free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


def job(processes: int, devices: int, what: str, pairs: int, alone: bool = False) -> list[Result]:
    """What process 0 of the job prints. Errors: SystemExit if a process fails."""
    shared = os.environ | {
        "WORLD_SIZE": str(processes),
        "LOCAL_WORLD_SIZE": str(processes),
        "MASTER_ADDR": "127.0.0.1",
        "MASTER_PORT": str(_free_port()),
        "SPMD_NUM_DEVICES": str(devices),
        "SPMD_DISTRIBUTED": "0" if alone else "1",
        "OMP_NUM_THREADS": os.environ.get("OMP_NUM_THREADS", "1"),
        "OMP_WAIT_POLICY": "PASSIVE",
    }
    command = [sys.executable, "-m", "benchmarks.processes.worker", what, str(pairs)]
    with tempfile.TemporaryDirectory() as folder:
        running = []
        for rank in range(processes):
            with (Path(folder) / str(rank)).open("w") as out:
                variables = shared | {"RANK": str(rank), "LOCAL_RANK": str(rank)}
                running.append(subprocess.Popen(command, stdout=out, env=variables))
        try:
            codes = [process.wait() for process in running]
        finally:
            for process in running:
                process.kill()
        if any(codes):
            raise SystemExit(f"the job '{what}' with {processes} processes failed: {codes}")
        printed = (Path(folder) / "0").read_text().splitlines()
    return [Result(**json.loads(line)) for line in printed if line.startswith("{")]


def agreement(processes: int, pairs: int) -> list[Result]:
    """Jobs and lone processes alternately: a process cannot be both."""
    together, alone = [], []
    for _ in range(3):
        alone.append(job(processes, processes, "agreement", pairs, alone=True))
        together.append(job(processes, processes, "agreement", pairs))
    results = []
    for rows, others in zip(zip(*together), zip(*alone)):
        extra = [mine.ours - other.ours for mine, other in zip(rows, others)]
        median = statistics.median(extra)
        figures = {"ours": median, "median": median, "low": min(extra), "high": max(extra)}
        results.append(dataclasses.replace(rows[0], budget=AGREEMENT_BUDGET, **figures))
    return results


def main() -> int:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--processes", type=int, nargs="*", default=[2, 4], metavar="P")
    parser.add_argument("--only", nargs="*", default=[*STRATEGIES, *MICRO], metavar="ROW")
    parser.add_argument("--pairs", type=int, default=7)
    parser.add_argument("--devices", type=int, default=8, help="of the rows with several each")
    parser.add_argument("--json", type=Path, help="also writes the results there")
    args = parser.parse_args()
    # So that the processes of a job do not outlive this one.
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(128 + signal.SIGTERM))
    print(report.HEADING.replace("eager", "theirs"))
    results: list[Result] = []

    def show(rows: list[Result], suffix: str) -> None:
        for row in rows:
            results.append(dataclasses.replace(row, name=row.name + suffix))
            print(report.line(results[-1]), flush=True)

    for processes in args.processes:
        at = f" P={processes}"
        for what in args.only:
            if what == "agreement":
                show(agreement(processes, args.pairs), at)
                continue
            show(job(processes, processes, what, args.pairs), at)
            if what in STRATEGIES and args.devices > processes:
                more = job(processes, args.devices, what, args.pairs)
                show(more, f"{at}, {args.devices} devices")
    if args.json is not None:
        report.write_json(args.json, results)
    return report.verdict(results)


if __name__ == "__main__":
    sys.exit(main())
