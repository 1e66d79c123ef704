# SPDX-License-Identifier: Apache-2.0
"""Compile time of the workloads beside XLA's in the same run, on the same core.

    python -m benchmarks.peers                       # all; about ten minutes
    python -m benchmarks.peers gpt_tp llama          # some
    python -m benchmarks.peers --python PATH         # an interpreter that has JAX
    python -m benchmarks.peers --rounds 3            # three times; the least figure counts

Two processes alternate, one with torch_spmd and one with JAX (`--python`, else the environment
variable SPMD_PEERS_PYTHON, else this interpreter); both are kept on one core. JAX compiles the same
models (`models/`) with the shapes and specs of `benchmarks/workloads` ahead of time for eight
virtual CPU devices, with each partitioner that it still has. Nothing is computed. Seconds:

    record   CPU time to record the step, ours          } of the step that compiles
    compile  ours: lowering, propagation, partition, loading
    lower    CPU time of XLA's side to trace the step to StableHLO
    compile  CPU time of all of XLA's compiler, code generation included
    passes   the part of that in passes that propagate shardings and partition

and ratios, against the faster of XLA's partitioners:

    compile  XLA's compile / our compile; must be at least 20
    whole    XLA's lower and compile / our record and compile
    passes   XLA's passes / our compile: leaves out how XLA makes the result run, but not how we do

Below, bytes on the wire, collectives and instructions as in `hlo.py`; XLA's instructions are after
fusion. Exits with 1 if `compile` is below 20, and with 0 if there is no JAX.
"""

from __future__ import annotations

import argparse
import os
import sys
from typing import NamedTuple

from benchmarks.peers.conversation import Child, Message, add_python_option, no_jax

FACTOR = 20
NAMES = (
    *("mlp", "gpt_dp", "gpt_fsdp", "gpt_zero1", "gpt_tp", "gpt_tpsp", "llama", "moe"),
    *("resnet50", "sg2_d", "sg2_g", "unet3d", "conformer"),
)
MARKS = {"inputs": False, "full": True}
ALWAYS_ANNOTATED = {"gpt_tpsp"}
Answers = dict[str, Message]  # by side: "ours" and each partitioner


class NoJax(Exception):
    """The interpreter cannot import JAX."""


class Ratios(NamedTuple):
    """The ratio of the faster partitioner's time to ours."""

    compile: float
    whole: float
    passes: float


def ratios(answers: Answers) -> Ratios:
    ours = answers["ours"]
    theirs = [answer for side, answer in answers.items() if side != "ours"]
    return Ratios(
        min(t["compile"] for t in theirs) / ours["compile"],
        min(t["lower"] + t["compile"] for t in theirs) / ours["step"],
        min(t["planning"] for t in theirs) / ours["compile"],
    )


def least(one: Answers, other: Answers) -> Answers:
    """The smaller of two measurements of each figure."""
    return {
        side: {
            what: min(figure, other[side][what]) if isinstance(figure, float) else figure
            for what, figure in answer.items()
        }
        for side, answer in one.items()
    }


def ask(ours: Child, theirs: Child, workload: str, annotated: bool) -> Answers:
    """Measures one side after the other, so that a busy machine affects all of them."""
    mine = ours.ask(workload=workload, annotated=annotated)
    question = {"workload": workload, "annotated": annotated}
    question["description"] = mine.pop("description")
    return {"ours": mine} | {
        partitioner: theirs.ask(**question, partitioner=partitioner)
        for partitioner in theirs.greeting["partitioners"]
    }


def heading(sides: list[str]) -> str:
    peers = "".join(f" |{side:^23}" for side in sides)
    columns = f" |{'lower':>7} {'compile':>7} {'passes':>7}" * len(sides)
    return (
        f"{'':17} |{'ours':^15}{peers} |{'times ours':^23}\n"
        f"{'':17} |{'record':>7} {'compile':>7}{columns} |{'compile':>7} {'whole':>7} {'passes':>7}"
    )


def line(name: str, answers: Answers) -> str:
    ours = answers["ours"]
    text = f"{name:17} |{ours['step'] - ours['compile']:7.4f} {ours['compile']:7.4f}"
    for side, answer in answers.items():
        if side != "ours":
            seconds = (answer["lower"], answer["compile"], answer["planning"])
            text += " |" + " ".join(f"{s:7.3f}" for s in seconds)
    return text + " |" + " ".join(f"{ratio:7.1f}" for ratio in ratios(answers))


def programs(answers: Answers) -> str:
    texts = []
    for side, answer in answers.items():
        kinds = sorted(answer.get("collectives", {}).items())
        counts = " + ".join(f"{n} {kind}" for kind, n in kinds)
        texts.append(
            f"{side}: {answer['mb']:.2f} MB{', ' + counts if counts else ''}, "
            f"{answer['instructions']} instructions"
        )
    return " " * 18 + "; ".join(texts)


def measure(python: str, names: list[str], marks: list[str], rounds: int) -> dict[str, Answers]:
    """By workload and marks. Prints every row when its last round is done.

    Errors: NoJax, saying why `python` cannot import JAX.
    """
    rows = [(n, m) for n in names for m in marks if m == "full" or n not in ALWAYS_ANNOTATED]
    found: dict[str, Answers] = {}
    for number in range(rounds):
        with Child(python, "benchmarks.peers.xla") as theirs:
            if "missing" in theirs.greeting:
                raise NoJax(theirs.greeting["missing"])
            if number == 0:
                print(f"JAX {theirs.greeting['jax']}, jaxlib {theirs.greeting['jaxlib']}")
                print(heading(theirs.greeting["partitioners"]))
            with Child(sys.executable, "benchmarks.peers.ours") as ours:
                for workload, mark in rows:
                    name = f"{workload:10} {mark:6}"
                    answers = ask(ours, theirs, workload, MARKS[mark])
                    found[name] = least(found[name], answers) if name in found else answers
                    if number == rounds - 1:
                        print(line(name, found[name]), programs(found[name]), sep="\n", flush=True)
    return found


def main() -> int:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("workloads", nargs="*", choices=[[], *NAMES], default=[])
    parser.add_argument("--marks", nargs="*", choices=list(MARKS), default=list(MARKS))
    parser.add_argument("--rounds", type=int, default=1)
    add_python_option(parser)
    parser.add_argument("--core", type=int, default=max(os.sched_getaffinity(0)))
    args = parser.parse_args()
    os.sched_setaffinity(0, {args.core})  # inherited by both processes
    try:
        found = measure(args.python, args.workloads or list(NAMES), args.marks, args.rounds)
    except NoJax as error:
        print(no_jax(args.python, str(error)))
        return 0
    for what in Ratios._fields:
        under = [name for name, answers in found.items() if getattr(ratios(answers), what) < FACTOR]
        names = ", ".join(" ".join(name.split()) for name in under)
        print(f"{what}: under {FACTOR} ×: {names or 'none'}")
    return 1 if any(ratios(answers).compile < FACTOR for answers in found.values()) else 0


if __name__ == "__main__":
    sys.exit(main())
