# SPDX-License-Identifier: Apache-2.0
"""Compares the specs that `spmd.planning.auto_shard` proposes with those that people write.

    python -m benchmarks.auto_shard              # ten models and five that are drawn
    python -m benchmarks.auto_shard gpt-1b       # some
    python -m benchmarks.auto_shard --seed 100   # five others

Each is sharded over eight devices, data=2 × model=4, by hand (data parallel, fully sharded,
Megatron's, 2-D) and by proposal; the batch is sharded in the best way in either case. Printed are
the modelled milliseconds of a step, and the CPU-seconds that the proposal took. Exits with 1 if
specs by hand that fit are faster.
"""

from __future__ import annotations

import argparse
import sys
import time

import torch_spmd as spmd
import torch_spmd.planning.proposals
from benchmarks.auto_shard.models import Case, Rules, by_hand, cases, drawn

MESH = {"data": 2, "model": 4}
NOTHING = 1e-9  # relative difference up to which times are equal


def proposed(
    case: Case, on: str, mesh: dict[str, int], rules: Rules | None = None
) -> torch_spmd.planning.proposals.Proposal | None:
    """None where nothing fits."""
    try:
        return spmd.planning.auto_shard(
            case.build, batch=case.batch(), on=on, mesh=mesh, specs=rules, loss=case.loss
        )
    except spmd.OutOfMemoryError:
        return None


def times_by_hand(case: Case, on: str, mesh: dict[str, int]) -> dict[str, float]:
    """Seconds of a step; infinite where it does not fit."""
    found = {kind: proposed(case, on, mesh, rules) for kind, rules in by_hand(case, mesh).items()}
    return {kind: p.estimate.seconds if p else float("inf") for kind, p in found.items()}


def is_at_least_as_good(case: Case, on: str, mesh: dict[str, int]) -> bool:
    """Prints one line."""
    hand = times_by_hand(case, on, mesh)
    start = time.process_time()
    found = proposed(case, on, mesh)
    took = time.process_time() - start
    seconds = found.estimate.seconds if found else float("inf")
    good = seconds <= min(hand.values()) * (1 + NOTHING)
    texts = ", ".join(f"{kind} {1e3 * seconds:.3f}" for kind, seconds in hand.items())
    print(
        f"{case.name:16} {1e3 * seconds:9.3f} ms ({found.alternatives[0].origin if found else ''}),"
        f" by hand: {texts}; {took:.1f} s{'' if good else '  WORSE'}",
        flush=True,
    )
    return good


def main() -> int:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("names", nargs="*", help="of models; all if there are none")
    parser.add_argument("--seed", type=int, default=0, help="of the five that are drawn")
    parser.add_argument("--on", default="v5e-8", help="the machine, of eight devices")
    args = parser.parse_args()
    chosen = cases() + [drawn(args.seed + k) for k in range(5)]
    chosen = [case for case in chosen if not args.names or case.name in args.names]
    return 0 if all([is_at_least_as_good(case, args.on, MESH) for case in chosen]) else 1


if __name__ == "__main__":
    sys.exit(main())
