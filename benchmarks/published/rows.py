# SPDX-License-Identifier: Apache-2.0
"""The rows of tpu.csv and gpu.csv: what was run, and what was published of it."""

from __future__ import annotations

import csv
from dataclasses import dataclass, fields
from pathlib import Path


@dataclass(frozen=True)
class Row:
    """One run.

    `ms`: milliseconds a step; `tf`: TFLOP/s a chip; `tok`: tokens/s a chip; `mfu`: 6 · parameters ·
    tokens / (time · chips · peak), in percent. `apart`: why the row counts apart from the others.
    `remat`: "full": each block is recomputed; "selective": what is neither attention nor every
    other product; "": nothing. `time_only`: the run recomputed or moved away a part of what the row
    keeps, so that its memory says nothing. `held_more_mb`: what the program of the published peak
    holds there and this one does not. `fits`: "no" where the TPU compiler ran out of memory.
    """

    name: str
    width: int
    layers: int
    heads: int
    head: int
    kv: int
    ff: int
    activation: str
    vocab: int
    length: int
    norm: str
    tied: bool
    positions: str
    biases: bool
    attention: str
    remat: str
    on: str
    mesh: dict[str, int]
    spec: str
    batch: int
    precision: str
    optimizer: str
    ms: float
    tf: float
    tok: float
    mfu: float
    peak_mb: float
    argument_mb: float
    held_more_mb: float
    fits: bool
    apart: str
    time_only: bool
    source: str

    @property
    def on_gpus(self) -> bool:
        return self.on[0].isdigit()

    @property
    def generation(self) -> str:
        """Of the TPU, or the GPU's model."""
        return self.on.split("x", 1)[1] if self.on_gpus else self.on.split("-")[0]

    @property
    def tokens(self) -> int:
        return self.batch * self.length


def rows() -> list[Row]:
    found = []
    for name in ("tpu.csv", "gpu.csv"):
        with open(Path(__file__).with_name(name), encoding="utf-8") as file:
            found += [_row(texts) for texts in csv.DictReader(file)]
    return found


def _row(texts: dict[str, str]) -> Row:
    values: dict[str, object] = {}
    for field in fields(Row):
        text = texts[field.name]
        if field.type == "int":
            values[field.name] = int(text)
        elif field.type == "float":
            values[field.name] = float(text or 0)
        elif field.name == "mesh":
            pairs = (axis.split("=") for axis in text.split())
            values["mesh"] = {name: int(size) for name, size in pairs}
        elif field.name == "fits":
            values["fits"] = text != "no"
        else:
            values[field.name] = text == "yes" if field.type == "bool" else text
    return Row(**values)  # type: ignore[arg-type]
