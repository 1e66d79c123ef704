# SPDX-License-Identifier: Apache-2.0
"""What DTensor does with PyTorch's own op samples, and what `spmd` does where DTensor fails.

    python -m benchmarks.peers.dtensor_ops results.jsonl                # some minutes of CPU
    python -m benchmarks.peers.dtensor_ops results.jsonl --page > docs/dtensor-ops.md

A run that was ended, also by --seconds, goes on where it was. Sizes are those of PyTorch's own test
of DTensor, which four devices divide. Of each op variant, the first samples run with dimension 0 of
every tensor sharded, and of the first tensor alone, where four divides it. DTensor runs as four
ranks in one process (`LocalTensorMode`), forward. A case fails where it raises an error, or has not
the CPU's values. All cases of a variant of which one fails run on `spmd`, forward and backward,
where a case is also asked whether a tensor is gathered. It needs the packages of the tests.
"""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
from torch.testing._internal import common_methods_invocations

ROOT = Path(__file__).resolve().parents[2]
sys.path.insert(0, str(ROOT / "tests" / "python" / "support"))

RANKS, SAMPLES = 4, 3
# Before samples are drawn: functions of op_db read these when they are called.
for name, size in (("L", 24), ("M", 12), ("S", 4), ("XS", 4)):
    setattr(common_methods_invocations, name, size)

import torch.distributed as dist  # noqa: E402
from op_outcomes import UNINITIALISED, NothingToCompare, compare, draws  # noqa: E402
from op_samples import OPS, Cut, ops_of, samples, tensors_of  # noqa: E402
from torch.distributed._local_tensor import LocalTensor, LocalTensorMode  # noqa: E402
from torch.distributed.tensor import (  # noqa: E402
    DeviceMesh,
    DTensor,
    Replicate,
    Shard,
    distribute_tensor,
)
from torch.testing._internal.distributed.fake_pg import FakeStore  # noqa: E402
from torch.utils._pytree import tree_leaves, tree_map  # noqa: E402

from torch_spmd import _C  # noqa: E402


def cuts(sample: Any) -> list[Cut]:
    """Dimension 0 of every tensor, and of the first one alone, where it can be sharded evenly."""
    tensors = tensors_of((sample.input, sample.args, sample.kwargs))
    every = [
        ("x",) + (None,) * (t.dim() - 1)
        if t.dim() and t.size(0) and t.size(0) % RANKS == 0
        else None
        for t in tensors
    ]
    sharded = [i for i, spec in enumerate(every) if spec is not None]
    if not sharded:
        return []
    first = tuple(spec if i == sharded[0] else None for i, spec in enumerate(every))
    return list(dict.fromkeys([Cut((RANKS,), tuple(every)), Cut((RANKS,), first)]))


def with_dtensors(op: Any, sample: Any, cut: Cut, mesh: Any) -> list[Any]:
    """The results of an op on DTensors, on the host."""
    specs = iter(cut.specs)

    def distributed(leaf: Any) -> Any:
        if not isinstance(leaf, torch.Tensor):
            return leaf
        placement = Shard(0) if next(specs) is not None else Replicate()
        return distribute_tensor(leaf.detach().clone(), mesh, [placement], src_data_rank=None)

    inputs = tree_map(distributed, (sample.input, sample.args, dict(sample.kwargs)))
    torch.manual_seed(0)
    return [whole(leaf) for leaf in tree_leaves(op(inputs[0], *inputs[1], **inputs[2]))]


def whole(value: Any) -> Any:
    value = value.full_tensor() if isinstance(value, DTensor) else value
    return value.reconcile() if isinstance(value, LocalTensor) else value


def dtensor_says(op: Any, sample: Any, cut: Cut, mesh: Any) -> str:
    """Why DTensor fails, in its words; "" if it has the CPU's values."""
    torch.manual_seed(0)
    inputs = tree_map(
        lambda leaf: leaf.detach().clone() if isinstance(leaf, torch.Tensor) else leaf,
        (sample.input, sample.args, dict(sample.kwargs)),
    )
    try:
        want = tree_leaves(op(inputs[0], *inputs[1], **inputs[2]))
    except Exception as error:
        raise NothingToCompare from error
    try:
        got = with_dtensors(op, sample, cut, mesh)
    except Exception as error:
        return f"{type(error).__name__}: {str(error).strip().splitlines()[0] if str(error) else ''}"
    if len(got) != len(want):
        return f"{len(got)} results, not {len(want)}"
    for a, b in zip(got, want):
        if not isinstance(b, torch.Tensor):
            if a != b:
                return f"{a}, not {b}"
        elif not isinstance(a, torch.Tensor) or a.shape != b.shape or a.dtype != b.dtype:
            return "another shape or type"
        elif not torch.allclose(a.to_dense(), b.to_dense(), 2e-3, 2e-4, equal_nan=True):
            return "wrong values"
    return ""


def ours_says(op: Any, sample: Any, cut: Cut) -> tuple[str, bool]:
    """What is wrong on `spmd`, "" for nothing; and whether a tensor was gathered on the way."""
    _C.forget_programs()
    on_host = _C.statistics()["host_fallbacks"]
    wrong = compare(op, sample, cut) or ""
    gathers = any(row[0] == "all_gather" for p in _C.programs() for row in p.collectives())
    return wrong, gathers or _C.statistics()["host_fallbacks"] > on_host


# PyTorch's offsets are of its own sizes: with others the CPU reads memory after the tensor.
PAST_THE_END = {"_segment_reduce_offsets"}


def outcome(name: str, mesh: Any, begin: Callable[[dict[str, Any]], None]) -> dict[str, Any]:
    """A line of the results: cases, those in which DTensor fails, and ours of the same variant.
    `begin` gets a line about which of both begins."""
    begin({"op": name, "begun": "DTensor"})
    op = OPS[name]
    cases, theirs = [], []
    try:
        drawn = [s for s in samples(op) if cuts(s)][:SAMPLES]
    except Exception:  # PyTorch's function that makes them needs its own sizes
        return {"op": name, "cases": 0, "refused": True}
    for sample in drawn:
        try:
            if name in UNINITIALISED | PAST_THE_END or draws(op, sample, "function"):
                continue
        except Exception:  # the CPU refuses the sample: its sizes are not op_db's own
            continue
        for cut in cuts(sample):
            try:
                with LocalTensorMode(RANKS):
                    said = dtensor_says(op, sample, cut, mesh)
            except NothingToCompare:
                continue
            cases.append((sample, cut))
            theirs += [said] if said else []
    line = {"op": name, "cases": len(cases), "dtensor": len(theirs)}
    if not theirs:
        return line
    begin({"op": name, "begun": "spmd"})
    wrong, gathered = [], 0
    for sample, cut in cases:
        try:
            said, gathers = ours_says(op, sample, cut)
        except NothingToCompare:
            continue
        wrong += [said] if said else []
        gathered += gathers
    return line | {
        "dtensor_first": theirs[0],
        "spmd": len(wrong),
        "spmd_first": wrong[0] if wrong else "",
        "gathered": gathered,
    }


def run(names: list[str], results: Path, until: float = float("inf")) -> None:
    """Appends a line for each op, up to a point of `time.monotonic`."""
    torch.ones(1, device="spmd").item()  # the device is there before the group
    dist.init_process_group("fake", store=FakeStore(), rank=0, world_size=RANKS)
    with LocalTensorMode(RANKS):
        mesh = DeviceMesh("cpu", torch.arange(RANKS))
    for name in names:
        if time.monotonic() > until:
            return
        append(results, outcome(name, mesh, lambda line: append(results, line)))


def run_all(results: Path, seconds: float) -> None:
    """In processes of their own, since a process may end with an op."""
    start = time.monotonic()
    while (left := seconds - (time.monotonic() - start)) > 0:
        begun = {line["op"]: line for line in read(results)}
        for name, line in begun.items():
            if "begun" in line:
                append(results, {"op": name, "cases": 0, "ended": line["begun"]})
        if all(name in begun for name in ops_of("float32")):
            return
        command = [sys.executable, "-m", "benchmarks.peers.dtensor_ops", str(results.resolve())]
        subprocess.run([*command, "--part", "--seconds", str(left)], cwd=ROOT)


def append(results: Path, line: dict[str, Any]) -> None:
    with results.open("a") as file:
        file.write(json.dumps(line) + "\n")


def read(results: Path) -> list[dict[str, Any]]:
    """The last line of each op."""
    lines = results.read_text().splitlines() if results.exists() else []
    return list({line["op"]: line for line in map(json.loads, lines)}.values())


def page(lines: list[dict[str, Any]]) -> str:
    refused = sorted(f"`{line['op']}`" for line in lines if line.get("refused"))
    missing = len(ops_of("float32")) - len(lines)
    ended = sorted(f"`{line['op']}` ({line['ended']})" for line in lines if line.get("ended"))
    lines = sorted((line for line in lines if line.get("cases")), key=lambda line: str(line["op"]))
    fails = [line for line in lines if line["dtensor"]]
    right = [line for line in fails if not line["spmd"]]
    cut = [line for line in right if not line["gathered"]]
    cases = sum(line["cases"] for line in lines)
    failing = sum(line["dtensor"] for line in lines)
    names = ", ".join(f"`{line['op']}`" for line in fails if line["spmd"]) or "none"

    def cell(text: str) -> str:
        text = text if len(text) <= 110 else text[:107] + "…"
        return text.replace("|", "\\|").replace("<", "&lt;")

    def here(line: dict[str, Any]) -> str:
        if line["spmd"]:
            return f"wrong in {line['spmd']}: {cell(line['spmd_first'])}"
        return f"right, gathers in {line['gathered']}" if line["gathered"] else "right"

    rows = [
        f"| {line['op']} | {line['dtensor']} of {line['cases']} | {cell(line['dtensor_first'])} | "
        f"{here(line)} |"
        for line in fails
    ]
    return "\n".join(
        [
            "# Ops that DTensor does not shard",
            "",
            f"Of {len(lines)} op variants of PyTorch's `op_db` (float32, torch "
            f"{torch.__version__.partition('+')[0]}) with {cases} sharded cases, DTensor fails in "
            f"{len(fails)} ({failing} cases). **{len(right)} of these {len(fails)} are right "
            "here**, forward and backward, in all of their cases, "
            f"**{len(cut)} of them without gathering a tensor**. Not right here: {names}.",
            "",
            "Made by `python -m benchmarks.peers.dtensor_ops`, whose head says what a case is. "
            "DTensor itself is asked, not PyTorch's list of the ops that fail there "
            "(`dtensor_fails` in its own test), which no release contains. Ops that draw random "
            "numbers, return uninitialised memory, or have no tensor that four devices divide are "
            "left out. All forms, dtypes and shardings of all ops, without DTensor, are in "
            "[coverage of ops](op-coverage.md).",
            *["", f"These end the process, in the part in brackets: {', '.join(ended)}."]
            * bool(ended),
            *["", f"PyTorch makes no samples of these sizes: {', '.join(refused)}."]
            * bool(refused),
            *["", f"{missing} variants have not been run."] * bool(missing),
            "",
            "| op | DTensor fails in | with | here |",
            "|---|---|---|---|",
            *rows,
        ]
    )


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("results", type=Path)
    parser.add_argument("--page", action="store_true", help="print the page about the results")
    parser.add_argument("--seconds", type=float, default=float("inf"), help="ends after them")
    parser.add_argument("--part", action="store_true", help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.page:
        print(page(read(options.results)))
    elif options.part:
        done = {line["op"] for line in read(options.results)}
        names = [name for name in ops_of("float32") if name not in done]
        run(names, options.results, time.monotonic() + options.seconds)
    else:
        run_all(options.results, options.seconds)


if __name__ == "__main__":
    main()
