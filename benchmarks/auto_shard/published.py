# SPDX-License-Identifier: Apache-2.0
"""Published runs: the specs and the mesh that are proposed beside those of the run.

    python -m benchmarks.auto_shard.published                 # all; twenty minutes
    python -m benchmarks.auto_shard.published mt-16b-v5e-256 gpt2-2b-v4-8-2d-b32
    python -m benchmarks.auto_shard.published --layers 4      # of each model; minutes

Printed are the modelled milliseconds of both, and the CPU-seconds that the proposal took. Exits
with 1 if a proposal takes 5 % longer than the run's mesh and specs, planned as published; proposals
must fit. Runs that do not fit themselves are skipped.
"""

from __future__ import annotations

import argparse
import sys
import time
from dataclasses import replace
from typing import Any

import torch

import torch_spmd as spmd
import torch_spmd.planning.proposals
from benchmarks.published.factored import Factored
from benchmarks.published.model import Decoder
from benchmarks.published.planned import plan_apart
from benchmarks.published.rows import Row, rows
from benchmarks.published.specs import Specs

MOST_LONGER = 0.05


def proposal_for(row: Row) -> torch_spmd.planning.proposals.Proposal:
    """On the row's machine; its model, without the marks of its run."""
    bare = replace(row, spec="none")
    mesh: Any = spmd.make_mesh((1,), ("x",))  # not used, since nothing is marked
    model = Decoder(bare, Specs(bare, mesh))
    tokens = torch.zeros(row.batch, row.length, dtype=torch.long, device="meta")
    return spmd.planning.auto_shard(
        model,
        batch=(tokens, tokens),
        on=row.on,
        optimizer=Factored if row.optimizer == "adafactor" else "adamw",
        autocast="bf16" if row.precision == "mixed" else None,
    )


def main() -> int:
    known = {row.name: row for row in rows() if row.spec != "none"}
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("rows", nargs="*", choices=[[], *known], default=[])
    parser.add_argument("--layers", type=int, help="instead of the models' own")
    args = parser.parse_args()
    good = True
    for name in args.rows or known:
        row = replace(known[name], layers=args.layers or known[name].layers)
        planned = plan_apart(row, memory=True)
        if isinstance(planned, str):
            # It ran with partial recomputation, which rows do not have.
            refused = "OutOfMemory" in planned
            print(f"{name:28} {'the run does not fit: ' if refused else ''}{planned[:150]}")
            good = good and refused
            continue
        start = time.process_time()
        found = proposal_for(row)
        took = time.process_time() - start
        more = found.estimate.seconds / planned.fitted - 1
        good = good and more <= MOST_LONGER
        print(
            f"{name:28} {1e3 * planned.fitted:9.0f} ms, proposed "
            f"{1e3 * found.estimate.seconds:9.0f} ms ({more:+.1%}): "
            f"{found.alternatives[0].origin}, {found.mesh}, batch over {found.batch}; "
            f"{took:.0f} s{'' if more <= MOST_LONGER else '  WORSE'}",
            flush=True,
        )
    return 0 if good else 1


if __name__ == "__main__":
    sys.exit(main())
