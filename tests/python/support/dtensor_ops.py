# SPDX-License-Identifier: Apache-2.0
"""What DTensor does with PyTorch's own op samples, and what `spmd` does with the same.

    python tests/python/support/dtensor_ops.py results.jsonl           # half an hour; resumes
    python tests/python/support/dtensor_ops.py results.jsonl --page > docs/dtensor-ops.md

Sizes are those of PyTorch's own test of DTensor, which four devices divide. Of each op variant, the
first samples run with dimension 0 of every tensor sharded, and of the first tensor alone, where
four divides it. DTensor runs as four ranks in one process (`LocalTensorMode`), forward; `spmd`
forward and backward. An op fails where one of these raises an error, or has not the CPU's values.
"""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import torch
from torch.testing._internal import common_methods_invocations

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


def outcome(name: str, mesh: Any) -> dict[str, Any]:
    """A line of the results: cases, DTensor's first failure, and ours."""
    op, cases = OPS[name], 0
    theirs, ours = [], []
    drawn = [s for s in samples(op) if cuts(s)][:SAMPLES]
    for sample in drawn:
        if name in UNINITIALISED or draws(op, sample, "function"):
            continue
        for cut in cuts(sample):
            try:
                with LocalTensorMode(RANKS):
                    said = dtensor_says(op, sample, cut, mesh)
                here = compare(op, sample, cut) or ""
            except NothingToCompare:
                continue
            cases += 1
            theirs += [said] if said else []
            ours += [here] if here else []
    return {
        "op": name,
        "cases": cases,
        "dtensor": len(theirs),
        "dtensor_first": theirs[0] if theirs else "",
        "spmd": len(ours),
        "spmd_first": ours[0] if ours else "",
    }


def run(names: list[str], results: Path) -> None:
    torch.ones(1, device="spmd").item()  # the device is there before the group
    dist.init_process_group("fake", store=FakeStore(), rank=0, world_size=RANKS)
    with LocalTensorMode(RANKS):
        mesh = DeviceMesh("cpu", torch.arange(RANKS))
    for name in names:
        with results.open("a") as file:
            file.write(json.dumps({"op": name, "begun": True}) + "\n")
        line = outcome(name, mesh)
        with results.open("a") as file:
            file.write(json.dumps(line) + "\n")


def run_all(results: Path) -> None:
    """In processes of their own, since a process may end with an op."""
    while True:
        begun = {line["op"]: line for line in read(results)}
        for name, line in begun.items():
            if "begun" in line:
                died = {"cases": 1, "dtensor": 1, "dtensor_first": "the process ended"}
                with results.open("a") as file:
                    file.write(
                        json.dumps({"op": name, **died, "spmd": 0, "spmd_first": "not run"}) + "\n"
                    )
        if all(name in begun for name in ops_of("float32")):
            return
        subprocess.run([sys.executable, __file__, str(results), "--part"])


def read(results: Path) -> list[dict[str, Any]]:
    """The last line of each op."""
    lines = results.read_text().splitlines() if results.exists() else []
    return list({line["op"]: line for line in map(json.loads, lines)}.values())


def page(lines: list[dict[str, Any]]) -> str:
    lines = sorted((line for line in lines if line["cases"]), key=lambda line: str(line["op"]))
    fails = [line for line in lines if line["dtensor"]]
    right = [line for line in fails if not line["spmd"] and line["spmd_first"] != "not run"]
    wrong_here = [line for line in lines if line["spmd"]]
    cases = sum(line["cases"] for line in lines)
    failing = sum(line["dtensor"] for line in lines)

    def cell(text: str) -> str:
        text = text if len(text) <= 110 else text[:107] + "…"
        return text.replace("|", "\\|")

    rows = [
        f"| {line['op']} | {line['dtensor']} of {line['cases']} | {cell(line['dtensor_first'])} | "
        f"{cell(line['spmd_first']) if line['spmd'] or line['spmd_first'] else 'right'} |"
        for line in fails
    ]
    return "\n".join(
        [
            "# Ops that DTensor does not shard",
            "",
            f"Of {len(lines)} op variants of PyTorch's `op_db` (float32, torch "
            f"{torch.__version__.partition('+')[0]}) with {cases} sharded cases, DTensor fails in "
            f"{len(fails)} ({failing} cases). **{len(right)} of these {len(fails)} run sharded "
            "here**, forward and backward, with the values of the CPU.",
            f"Of all {len(lines)}, {len(wrong_here)} have a case that is wrong here.",
            "",
            "Made by `tests/python/support/dtensor_ops.py`, which says what a case is. Ops that "
            "draw random numbers or return uninitialised memory are left out.",
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
    parser.add_argument("--part", action="store_true", help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.page:
        print(page(read(options.results)))
    elif options.part:
        done = {line["op"] for line in read(options.results)}
        run([name for name in ops_of("float32") if name not in done], options.results)
    else:
        run_all(options.results)


if __name__ == "__main__":
    main()
