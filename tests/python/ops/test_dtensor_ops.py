# SPDX-License-Identifier: Apache-2.0
"""The command that compares op samples on DTensor with ours (benchmarks/peers/dtensor_ops.py): on
a few ops, and a sample of the table that it has written, another one with every commit."""

import re
from pathlib import Path

import rotation
from processes import run_script

ROOT = Path(__file__).parents[3]
PAGE = ROOT / "docs" / "dtensor-ops.md"
SAMPLE = 3  # rows of the table


def outcomes(names, folder):
    """The command's lines about these ops, and its page."""
    # In a process of its own: it changes the sizes of op_db and has a fake process group.
    done = run_script(f"""
        import pathlib, sys
        sys.path.insert(0, {str(ROOT)!r})
        from benchmarks.peers import dtensor_ops
        results = pathlib.Path({str(folder)!r}) / "results.jsonl"
        dtensor_ops.run({names!r}, results)
        lines = dtensor_ops.read(results)
        print({{line["op"]: line for line in lines}})
        print(dtensor_ops.page(lines))
    """)
    lines, _, page = done.stdout.partition("\n")
    return eval(lines), page


def test_a_few_ops(tmp_path):
    lines, page = outcomes(["add", "nn_functional_conv2d", "normal"], tmp_path)
    assert lines["add"]["cases"] > 0
    assert lines["add"]["dtensor"] == 0
    assert lines["normal"]["cases"] == 0  # draws random numbers
    conv = lines["nn_functional_conv2d"]
    assert conv["dtensor"] > 0  # and here it is right, and sharded
    assert (conv["spmd"], conv["gathered"]) == (0, 0)
    assert "**1 of these 1 are right here**" in page
    assert "**1 of them without gathering a tensor**" in page


def test_rows_of_the_table(tmp_path):
    """What the page says about an op holds: how often DTensor fails, right or not, gathers."""
    rows = re.findall(r"^\| (\w+) \| (\d+) of (\d+) \| .* \| (.*) \|$", PAGE.read_text(), re.M)
    assert len(rows) > 50
    first = rotation.turn() * SAMPLE
    chosen = [rows[(first + i) % len(rows)] for i in range(SAMPLE)]
    lines, _ = outcomes([row[0] for row in chosen], tmp_path)
    for op, fails, cases, here in chosen:
        line = lines[op]
        assert (line["dtensor"], line["cases"]) == (int(fails), int(cases)), op
        assert (line["spmd"] > 0) == here.startswith("wrong"), (op, line)
        assert (line["gathered"] > 0) == ("gathers" in here) or line["spmd"], (op, line)
