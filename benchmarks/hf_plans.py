# SPDX-License-Identifier: Apache-2.0
"""`python -m benchmarks.hf_plans`: every configuration of `transformers` that has a plan for tensor
or expert parallelism, in tiny size, sharded by `spmd.hf.shard_model` on 2 x 4 virtual devices,
beside plain PyTorch.

A row says whether the loss and the gradients are those of the unsharded model, how many parameters
are sharded over the model axis, which styles are not known, or why the model could not be built at
a tiny size. The loss is that of a language model where there is one, else the mean squared
distance of what the model returns to drawn values. `hf_models.py` has the sizes and the inputs.
`--only llama,mixtral` chooses by type; `--part I/N` runs the I-th of N parts; `--markdown FILE`
writes the table, `--page FILE` puts it in a page that has one. The exit status is 1 if a model that
was built has another loss.
"""

from __future__ import annotations

import argparse
import contextlib
import copy
import io
import re
import signal
import sys
import warnings
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch import nn

import torch_spmd as spmd
from benchmarks.hf_models import build, configs, inputs_of, loss_of, remark


@dataclass
class Row:
    model: str
    state: str  # equal, differs, not built, fails
    over_model: int
    parameters: int
    unsupported: str
    note: str


def outcome(model: nn.Module, inputs: dict[str, Any]) -> tuple[float, dict[str, torch.Tensor]]:
    loss = loss_of(model, inputs)
    loss.backward()
    grads = {n: p.grad.cpu() for n, p in model.named_parameters() if p.grad is not None}
    return loss.item(), grads


def compare(name: str, kind: Any, mesh: spmd.Mesh) -> Row:
    try:
        reference = build(kind)
        inputs = inputs_of(reference)
        ours = copy.deepcopy(reference)
        loss, grads = outcome(reference, inputs)
    except Exception as error:
        return Row(name, "not built", 0, 0, "", _said(error))
    count = sum(1 for _ in ours.parameters())
    try:
        ours = ours.to("spmd")
        has = {"tp": "model" if getattr(ours, "_tp_plan", None) else None}
        has["ep"] = "model" if getattr(ours, "_ep_plan", None) else None
        report = spmd.hf.shard_model(ours, mesh, **has)
        moved = {
            name: value.to("spmd") if isinstance(value, torch.Tensor) else value
            for name, value in inputs.items()
        }
        our_loss, our_grads = outcome(ours, moved)
    except Exception as error:
        return Row(name, "fails", 0, count, "", _said(error))
    wrong = [n for n, grad in grads.items() if not _close(our_grads.get(n), grad)]
    over = sum("model" in repr(spec) for spec in report.sharded.values())
    unknown = ", ".join(sorted(set(report.unsupported.values())))
    equal = abs(our_loss - loss) <= 1e-4 * max(1, abs(loss)) and not wrong
    note = remark(kind, reference)
    if not equal:
        note = f"loss {our_loss:.6f} for {loss:.6f}; {len(wrong)} gradients, {wrong[:1]}"
    return Row(name, "equal" if equal else "differs", over, count, unknown, note)


def _close(ours: torch.Tensor | None, expected: torch.Tensor) -> bool:
    if ours is None:
        return bool((expected == 0).all())
    scale = expected.abs().max().item()
    return torch.allclose(ours, expected, rtol=1e-3, atol=1e-4 * max(scale, 1e-3))


def _said(error: Exception) -> str:
    text = str(error).splitlines()[0] if str(error) else ""
    # Files of packages without the folder in which this machine has them.
    text = re.sub(r"/\S*/site-packages/", "", text)
    return f"{type(error).__name__}: {text}"[:160]


@contextlib.contextmanager
def limited(seconds: int) -> Iterator[None]:
    def stop(*_: Any) -> None:
        raise TimeoutError(f"over {seconds} s")

    signal.signal(signal.SIGALRM, stop)
    signal.alarm(seconds)
    try:
        yield
    finally:
        signal.alarm(0)


def markdown(rows: list[Row]) -> str:
    states = {state: sum(row.state == state for row in rows) for state in STATES}
    lines = [", ".join(f"{count} {state}" for state, count in states.items()), ""]
    lines += [
        "| model | state | over `model` | parameters | unknown styles | note |",
        "|" + "---|" * 6,
    ]
    for row in rows:
        cells = (row.model, row.state, row.over_model, row.parameters, row.unsupported, row.note)
        lines.append("| " + " | ".join(str(cell).replace("|", "/") for cell in cells) + " |")
    return "\n".join(lines) + "\n"


def replace_table(page: Path, table: str) -> None:
    """Writes the table in the place of the one in the page, and which transformers it is of."""
    import transformers

    above = page.read_text().split("<!-- table -->")[0]
    above = re.sub(r"`transformers` [\d.]+", f"`transformers` {transformers.__version__}", above)
    page.write_text(f"{above}<!-- table -->\n{table}")


STATES = ("equal", "differs", "fails", "not built")


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--only", help="model types, separated by commas")
    parser.add_argument("--part", default="1/1", help="which part, as in 2/4")
    parser.add_argument("--markdown", help="a file for the table")
    parser.add_argument("--page", help="docs/hf-plans.md")
    options = parser.parse_args()
    part, parts = map(int, options.part.split("/"))
    only = set(options.only.split(",")) if options.only else None
    mesh = spmd.make_mesh((2, 4), ("data", "model"))
    rows = []
    for number, (name, kind) in enumerate(configs()):
        if (only is not None and name not in only) or number % parts != part - 1:
            continue
        with limited(120), warnings.catch_warnings(), contextlib.redirect_stderr(io.StringIO()):
            warnings.simplefilter("ignore")
            rows.append(compare(name, kind, mesh))
        row = rows[-1]
        print(f"{row.model:28} {row.state:10} {row.over_model:4} of {row.parameters:4}  {row.note}")
        sys.stdout.flush()
    text = markdown(rows)
    print(text.split("\n", 1)[0])
    if options.markdown:
        Path(options.markdown).write_text(text)
    if options.page:
        replace_table(Path(options.page), text)
    return int(any(row.state in ("differs", "fails") for row in rows))


if __name__ == "__main__":
    sys.exit(main())
