# SPDX-License-Identifier: Apache-2.0
"""Every sample of every op, dtype and form, under every sharding; takes hours, in parts that
resume.

    python tests/python/support/sweep_ops.py results.jsonl --part 1/4 --seconds 3600
    python tests/python/support/op_coverage.py results*.jsonl > docs/op-coverage.md

A line of the results is one op variant in one dtype and form. What has a line already is skipped,
so give each part of a sweep that runs beside others a file of its own. Devices run tile by tile;
with SPMD_COALESCE=1 as one. Exits with 1 if something is wrong that op_exceptions.py does not name.
"""

import argparse
import collections
import faulthandler
import itertools
import json
import os
import sys
import time
from pathlib import Path

os.environ.setdefault("SPMD_COALESCE", "0")  # before torch_spmd is imported

from op_checks import settle
from op_exceptions import EXCEPTIONS
from op_outcomes import FORMS, NothingToCompare, compare, has_form
from op_samples import (
    DTYPES,
    OPS,
    all_cuts,
    differentiable,
    evenly,
    first_cuts,
    ops_of,
    ranks,
    samples,
)

# How to call an op, and how its samples are sharded.
SWEEPS = {form: (form, None) for form in FORMS} | {
    "sharded": ("function", all_cuts),
    "second, sharded": ("second", first_cuts),
    "forward_mode, sharded": ("forward_mode", first_cuts),
}

# There are exceptions for a few samples, and more of them for every sample.
FULL = ("", ", full")

# A key that takes longer than this hangs: the process ends. The next one tries the key again, for
# this one may have been stopped; if it ends as well, the one after it notes that and goes on.
HANGS = 3600


def keys(dtypes=tuple(DTYPES), sweeps=tuple(SWEEPS)):
    """All (op variant, dtype, sweep) that there are."""
    for sweep, dtype in itertools.product(sweeps, dtypes):
        form = SWEEPS[sweep][0]
        for name in ops_of(dtype):
            needs_gradient = form in ("second", "forward_mode")
            if has_form(OPS[name], form) and not (
                needs_gradient and not differentiable(OPS[name], dtype)
            ):
                yield name, dtype, sweep


def sweep_key(name, dtype, sweep, limit=None):
    """One line of the results."""
    form, cuts_of = SWEEPS[sweep]
    started, compared, wrong = time.monotonic(), 0, collections.Counter()
    first, op = None, OPS[name]
    every = list(enumerate(samples(op, dtype)))
    for seed, sample in evenly(every, limit or len(every)):
        for cut in cuts_of(ranks(sample), seed) if cuts_of else [None]:
            try:
                what = compare(op, sample, cut, form)
            except NothingToCompare:
                continue
            compared += 1
            if what:
                wrong[what.split()[0].strip(":")] += 1
                first = first or f"sample {seed}, {cut or 'whole'}, {sample.summary()}: {what}"
                settle()
    return {
        "op": name,
        "dtype": dtype,
        "form": sweep,
        "samples": limit,
        "compared": compared,
        "wrong": dict(wrong),
        "first": first,
        "seconds": round(time.monotonic() - started, 2),
    }


def sweep_all(todo, results, seconds, limit=None):
    """Appends missing lines until the time is over."""
    deadline = time.monotonic() + seconds
    running = results.with_suffix(".running")
    last, tries = json.loads(running.read_text()) if running.exists() else (None, 0)
    if tries == 2:
        name, dtype, sweep = last
        died = {
            "samples": limit,
            "compared": 1,
            "wrong": {"died": 1},
            "first": "the process ended",
            "seconds": 0,
        }
        _append(results, {"op": name, "dtype": dtype, "form": sweep, **died})
    done = _done(results)
    for key in todo:
        if key in done:
            continue
        if time.monotonic() > deadline:
            break
        running.write_text(json.dumps([key, tries + 1 if list(key) == last else 1]))
        faulthandler.dump_traceback_later(HANGS, exit=True)
        _append(results, sweep_key(*key, limit))
    faulthandler.cancel_dump_traceback_later()
    running.unlink(missing_ok=True)


def _append(results, line):
    with results.open("a") as file:
        file.write(json.dumps(line) + "\n")


def _done(results):
    if not results.exists():
        return set()
    lines = map(json.loads, results.read_text().splitlines())
    return {(line["op"], line["dtype"], line["form"]) for line in lines}


def is_known(line):
    """Whether op_exceptions.py lists the op in this form, sharding or dtype."""
    form, dtype = line["form"], line["dtype"]
    kinds = {form, form.split(",")[0].replace("function", "device"), dtype}
    return any(line["op"] in EXCEPTIONS.get(kind + more, {}) for kind in kinds for more in FULL)


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("results", type=Path)
    parser.add_argument("--part", default="1/1", help="I/N: the I-th of N equal parts")
    parser.add_argument("--seconds", type=float, default=float("inf"), help="when to stop")
    parser.add_argument("--dtypes", nargs="+", choices=DTYPES, default=list(DTYPES))
    parser.add_argument("--forms", nargs="+", choices=SWEEPS, default=list(SWEEPS))
    parser.add_argument("--ops", nargs="+", help="op variants; all without it")
    parser.add_argument("--samples", type=int, help="at most so many of each op; all without it")
    given = parser.parse_args()
    part, parts = map(int, given.part.split("/"))
    todo = [k for k in keys(given.dtypes, given.forms) if not given.ops or k[0] in given.ops]
    mine = todo[part - 1 :: parts]
    sweep_all(mine, given.results, given.seconds, given.samples)
    lines = map(json.loads, given.results.read_text().splitlines())
    wrong = [line for line in lines if line["wrong"]]
    known = [line for line in wrong if is_known(line)]
    new = [f"{n['op']} ({n['form']}, {n['dtype']})" for n in wrong if n not in known]
    left = len(set(mine) - _done(given.results))
    print(
        f"{len(mine) - left} of {len(mine)} swept; wrong as known: {len(known)}; "
        f"wrong beyond that: {', '.join(new) or 'nothing'}"
    )
    return 1 if new else 0


if __name__ == "__main__":
    sys.exit(main())
