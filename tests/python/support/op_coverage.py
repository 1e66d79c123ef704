# SPDX-License-Identifier: Apache-2.0
"""A page about the results of `sweep_ops.py`: what was compared, what is wrong.

    python tests/python/support/op_coverage.py results*.jsonl > docs/op-coverage.md

Of two lines of one op variant, dtype and form, the one with more samples counts.
"""

import collections
import fileinput
import json
import math


def page(lines):
    """The text of the page, in Markdown, from lines of results."""
    return "\n\n".join(
        (
            "# Op coverage",
            "PyTorch's own op samples (`op_db`) on `spmd` against the CPU. A variant counts as "
            "right in a dtype and form when every case that the CPU runs has the CPU's result. "
            "Made by `tests/python/support/op_coverage.py` from results of "
            "`tests/python/support/sweep_ops.py`, "
            f"with these samples of each variant: {samples_of(lines)}.",
            "## Totals",
            table(
                ("form", "dtype", "variants", "samples", "right", "cases", "wrong cases"),
                totals(lines),
            ),
            "## What is wrong",
            table(("op", "form", "dtype", "wrong", "the first"), wrongs(lines)),
            "## Every variant",
            "Dtypes that are right, of those swept.",
            table(("op", *forms_of(lines)), variants(lines)),
        )
    )


def table(head, rows):
    """Rows as a Markdown table."""
    every = [head, ["---"] * len(head), *rows]
    return "\n".join("| " + " | ".join(map(str, row)) + " |" for row in every)


def totals(lines):
    groups = collections.defaultdict(list)
    for line in lines:
        groups[line["form"], line["dtype"]].append(line)
    for (form, dtype), group in groups.items():
        right = sum(not line["wrong"] for line in group)
        cases = sum(line["compared"] for line in group)
        samples = samples_of(group)
        yield form, dtype, len(group), samples, right, cases, sum(map(wrong_cases, group))


def wrongs(lines):
    for line in sorted(lines, key=lambda line: (line["op"], line["form"], line["dtype"])):
        if line["wrong"]:
            count = f"{wrong_cases(line)} of {line['compared']}"
            first = shortened(line["first"]).replace("|", "\\|")
            yield line["op"], line["form"], line["dtype"], count, first


def variants(lines):
    groups = collections.defaultdict(list)
    for line in lines:
        groups[line["op"], line["form"]].append(not line["wrong"])
    for op in sorted({line["op"] for line in lines}):
        cells = (groups.get((op, form)) for form in forms_of(lines))
        yield op, *(f"{sum(cell)}/{len(cell)}" if cell else "" for cell in cells)


def forms_of(lines):
    return list(dict.fromkeys(line["form"] for line in lines))


def samples_of(lines):
    """How many samples of an op variant the lines are about, and which share of them."""
    limits = collections.Counter(map(limit_of, lines))
    names = {limit: f"at most {limit}" for limit in limits} | {math.inf: "all"}
    if len(limits) == 1:
        return names[next(iter(limits))]
    return ", ".join(
        f"{names[limit]} of {limits[limit]} variants" for limit in sorted(limits, reverse=True)
    )


def limit_of(line):
    return math.inf if line["samples"] is None else line["samples"]


def fullest(lines):
    """One line of each op variant, dtype and form, in the order in which a sweep makes them."""
    best = {}
    for line in lines:
        key = line["op"], line["dtype"], line["form"]
        if key not in best or limit_of(line) >= limit_of(best[key]):
            best[key] = line
    dtypes, forms = (
        {name: i for i, name in enumerate(dict.fromkeys(line[k] for line in lines))}
        for k in ("dtype", "form")
    )
    order = {name: i for i, name in enumerate(sorted({line["op"] for line in lines}))}
    return sorted(
        best.values(),
        key=lambda line: (forms[line["form"]], dtypes[line["dtype"]], order[line["op"]]),
    )


def wrong_cases(line):
    return sum(line["wrong"].values())


def shortened(first, length=160):
    """What went wrong, without the sample that showed it."""
    what = first[max(first.find("): raises "), first.find("): differs")) + 1 :].lstrip(": ")
    return what if len(what) <= length else what[: length - 1] + "…"


if __name__ == "__main__":
    with fileinput.input(encoding="utf-8") as file:
        print(page(fullest([json.loads(line) for line in file])))
