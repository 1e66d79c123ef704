# SPDX-License-Identifier: Apache-2.0
"""Bytes on the wire of the workloads, beside what XLA needs for the same.

    python -m benchmarks.oracle                 # all
    python -m benchmarks.oracle gpt_tp llama    # some
    python -m benchmarks.oracle --rows gpt_tp   # with every collective

Nothing is computed: programs are planned for a described machine. XLA's figures (XLA:CPU, the
better of GSPMD and Shardy, all-reduces that are sliced at once counted as reduce-scatters) were
measured once with the same shapes and specs; the floor is what the arithmetic needs, where that is
known. Exits with 1 where more is sent than by XLA.
"""

from __future__ import annotations

import argparse
import sys
from collections import Counter

import torch_spmd as spmd
from benchmarks.workloads import WORKLOADS

# MB (10^6 bytes) sent per device: with marks on inputs only, fully annotated; the floor or None.
XLA_MB: dict[str, tuple[float, float, float | None]] = {
    "mlp": (21.50, 21.50, 21.50),
    "gpt_dp": (97.24, 97.24, 86.23),
    "gpt_fsdp": (104.0, 91.7, 129.3),
    "gpt_zero1": (89.0, 89.0, 86.2),
    "gpt_tp": (209.2, 209.2, 143.1),
    "gpt_tpsp": (325.7, 325.7, 143.2),
    "llama": (148.5, 148.5, None),
    "moe": (69.9, 92.9, 51.0),
    "resnet50": (252.4, 252.4, 183.0),
}
SMALL = 4096  # bytes: losses and norms


def measure(name: str, annotated: bool, rows: bool) -> bool:
    """Prints one line; False where XLA sends less."""
    workload = WORKLOADS[name](annotated)
    for _ in range(2):  # the optimizer makes its state in the first
        workload.step()
    table = spmd.debug.collectives()
    wire = sum(row.wire_bytes for row in table.rows) / 1e6
    kinds = Counter(row.kind for row in table.rows if row.bytes > SMALL)
    compiled = spmd.debug.explain_compile().rows[-1]
    xla, floor = XLA_MB[name][int(annotated)], XLA_MB[name][2]
    says = "" if wire <= xla else "  MORE THAN XLA"
    print(
        f"{name:10} {'full' if annotated else 'inputs':7} {wire:8.2f} {xla:8.2f} "
        f"{floor if floor is not None else '-':>7} "
        f"{spmd.debug.memory().peak_bytes / 1e6:8.1f} {compiled.instructions:6} "
        f"{compiled.milliseconds:8.1f}  "
        + ", ".join(f"{n} {kind}" for kind, n in sorted(kinds.items()))
        + says,
        flush=True,
    )
    if rows:
        print(table)
    return not says


def main() -> int:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("workloads", nargs="*", choices=[[], *WORKLOADS], default=[])
    parser.add_argument("--rows", action="store_true", help="print every collective")
    args = parser.parse_args()
    spmd.set_default_backend("mock_tpu:v4-16:plan")
    print(
        f"{'':10} {'marks':7} {'MB':>8} {'XLA':>8} {'floor':>7} {'peak MB':>8} {'instr':>6} "
        f"{'ms':>8}  collectives of more than {SMALL} bytes"
    )
    good = [
        measure(name, annotated, args.rows)
        for name in args.workloads or WORKLOADS
        for annotated in (False, True)
    ]
    return 0 if all(good) else 1


if __name__ == "__main__":
    sys.exit(main())
