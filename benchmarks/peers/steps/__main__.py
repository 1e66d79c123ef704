# SPDX-License-Identifier: Apache-2.0
"""Training steps and launches of programs beside eager PyTorch's and XLA's in the same run.

    python -m benchmarks.peers.steps                  # all rows; about half an hour on two cores
    python -m benchmarks.peers.steps "GPT dp" launch  # rows whose name begins so
    python -m benchmarks.peers.steps --python PATH    # an interpreter that has JAX

One process has torch_spmd and eager PyTorch, another one JAX (`--python`, else the environment
variable SPMD_PEERS_PYTHON, else this interpreter). They alternate: eager, ours, XLA; the ratios of
each round are a sample. The models are those of `benchmarks/workloads`, with marks on parameters
and inputs alone; XLA compiles them ahead of time for the same number of virtual CPU devices, with
its default partitioner. A launch adds 1 to eight floats per device; 200 launches are waited for
together. With JAX a launch is a call of a compiled function, with us it is recording and a cut.

    eager, ours, XLA   medians of CPU-seconds, of all threads, in ms (launches: µs)
    ours/eager, XLA/eager, XLA/ours   medians of ratios, with the 95 % interval of the last
    clock              the last ratio, of wall times

This is for information, so nothing fails. Exits with 0 if there is no JAX.
"""

from __future__ import annotations

import argparse
import statistics
import sys
from collections.abc import Callable

from benchmarks.peers.conversation import Child, Message, add_python_option, no_jax
from benchmarks.peers.steps.rows import CASES, LAUNCHES
from benchmarks.speed.measure import interval_of_median

Turn = dict[str, Message]  # by side

SIDES = ("eager", "ours", "xla")
HEADING = (
    f"{'':14} {'eager':>9} {'ours':>9} {'XLA':>9}    {'ours/eager':>10} {'XLA/eager':>10} "
    f"{'XLA/ours':>9} {'95 %':>15} {'clock':>7}"
)


def ratios(turns: list[Turn], over: str, under: str, what: str = "cpu") -> list[float]:
    return [turn[over][what] / turn[under][what] for turn in turns]


def line(name: str, turns: list[Turn]) -> str:
    scale, unit = (1e3, "ms") if CASES[name].workload else (1e6 / LAUNCHES, "µs")
    medians = [statistics.median(turn[side]["cpu"] for turn in turns) * scale for side in SIDES]
    to_us = ratios(turns, "xla", "ours")
    low, high = interval_of_median(to_us)
    return (
        f"{name:14} {medians[0]:9.2f} {medians[1]:9.2f} {medians[2]:9.2f} {unit} "
        f"{statistics.median(ratios(turns, 'ours', 'eager')):10.2f} "
        f"{statistics.median(ratios(turns, 'xla', 'eager')):10.2f} "
        f"{statistics.median(to_us):9.2f} {low:7.2f} {high:7.2f} "
        f"{statistics.median(ratios(turns, 'xla', 'ours', 'clock')):7.2f}"
    )


def measure(ours: Child, theirs: Child, name: str, pairs: int, warm: int = 3) -> list[Turn]:
    theirs.ask(row=name, **ours.ask(row=name))
    sides: dict[str, Callable[[], Message]] = {
        "eager": lambda: ours.ask(run="eager"),
        "ours": lambda: ours.ask(run="ours"),
        "xla": lambda: theirs.ask(),
    }
    turns = [{side: run() for side, run in sides.items()} for _ in range(warm + pairs)]
    return turns[warm:]


def main() -> int:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("rows", nargs="*", metavar="ROW")
    parser.add_argument("--pairs", type=int, default=15)
    add_python_option(parser)
    args = parser.parse_args()
    chosen = [name for name in CASES if not args.rows or any(name.startswith(r) for r in args.rows)]
    # Threads that spin while they wait would count as work.
    with Child(sys.executable, "benchmarks.peers.steps.ours", OMP_WAIT_POLICY="PASSIVE") as ours:
        for name in chosen:
            devices = str(CASES[name].devices)
            with Child(
                args.python, "benchmarks.peers.steps.xla", SPMD_PEERS_DEVICES=devices
            ) as theirs:
                if "missing" in theirs.greeting:
                    print(no_jax(args.python, theirs.greeting["missing"]))
                    return 0
                if name == chosen[0]:
                    print(f"PyTorch {ours.greeting['torch']}, JAX {theirs.greeting['jax']}")
                    print(HEADING)
                print(line(name, measure(ours, theirs, name, args.pairs)), flush=True)
    return 0


if __name__ == "__main__":
    sys.exit(main())
