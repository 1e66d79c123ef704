# SPDX-License-Identifier: Apache-2.0
"""The command that compares op samples on DTensor with ours (support/dtensor_ops.py), on a few."""

from pathlib import Path

from processes import run_script

SUPPORT = Path(__file__).parents[1] / "support"


def test_a_few_ops(tmp_path):
    # In a process of its own: it changes the sizes of op_db and has a fake process group.
    done = run_script(f"""
        import sys
        sys.path.insert(0, {str(SUPPORT)!r})
        import pathlib, dtensor_ops
        results = pathlib.Path({str(tmp_path)!r}) / "results.jsonl"
        dtensor_ops.run(["add", "nn_functional_conv2d", "normal"], results)
        for line in dtensor_ops.read(results):
            print(line["op"], line["cases"] > 0, line["dtensor"] > 0, line["spmd"])
        print(dtensor_ops.page(dtensor_ops.read(results)))
    """)
    add, conv, normal, *page = done.stdout.splitlines()
    assert add == "add True False 0"
    assert conv == "nn_functional_conv2d True True 0"  # DTensor fails, and here it is right
    assert normal == "normal False False 0"  # draws random numbers
    assert "**1 of these 1 run sharded here**" in "\n".join(page)
