# SPDX-License-Identifier: Apache-2.0
"""A Loader gives the same batches in jobs of 1, 2 and 4 processes, and each process reads the rows
that its devices hold."""

import json
from pathlib import Path

import job
import pytest

# Rows that a batch is filled up to.
FULL = {"even": 8, "keep": None, "drop": 8, "pad": 8, "one row left": None}
# Of which every process reads all rows.
WHOLE = ("text", "no mark", "replicated", "own collate")


@pytest.fixture(scope="module")
def alone(tmp_path_factory):
    return run(1, tmp_path_factory.mktemp("alone"))[0]


def run(processes, folder):
    script = Path(__file__).parent / "row_cases.py"
    variables = {"SPMD_NUM_DEVICES": "8", "SPMD_TIMEOUT": "60", "SPMD_EXACT": "1"}
    ends = job.run(script, processes, 120, [str(folder)], **variables)
    for ended in ends:
        assert ended.code == 0, ended.err[-4000:]
        if processes > 1:
            assert "draws another batch than process 0; give all of them the same seed" in ended.out
    return [json.loads((folder / f"{rank}.json").read_text()) for rank in range(processes)]


def own(rank, processes, size, full):
    """Of a batch along the axis "data" of (4, 2) devices: the rows of this process."""
    part, each = -(-full // 4), 4 // processes
    return range(min(size, rank * each * part), min(size, (rank + 1) * each * part))


@pytest.mark.parametrize("processes", [2, 4])
def test_the_same_batches_of_own_rows(alone, tmp_path, processes):
    every = run(processes, tmp_path)
    for found in every:
        assert found.keys() == alone.keys()
        for name, (values, _) in alone.items():
            assert found[name][0] == values, name
    asked = {name: [found[name][1] for found in every] for name in alone}
    for case, full in FULL.items():
        for name in (case, f"{case}, again"):
            order = alone[name][1]  # of whole batches
            size = 16 if case == "drop" else len(order)
            batches = [order[i : i + 8] for i in range(0, size, 8)]
            for rank, mine in enumerate(asked[name]):
                needed = [own(rank, processes, len(b), full or len(b)) for b in batches]
                assert mine == [b[i] for b, rows in zip(batches, needed) for i in rows], name
    # A batch of which a process needs nothing has a form all the same, here that of one row.
    assert asked["less than a batch"] == [[0]] * processes
    shuffled = [i for mine in asked["shuffled"] for i in mine]
    assert sorted(shuffled) == list(range(24)) and len(asked["shuffled"][0]) == 24 // processes
    assert asked["shuffled"] != asked["shuffled, again"]
    # The devices 1, 4 and 6 have three rows, three and two of eight; process 1 of 4 has none.
    some = {2: [[0, 1, 2], [3, 4, 5, 6, 7]], 4: [[0, 1, 2], [0], [3, 4, 5], [6, 7]]}
    assert asked["some devices"] == some[processes]
    both = [len(mine) for mine in asked["over both axes"]]
    assert both == [16] * processes  # "model" needs every row of each process
    for name in WHOLE:
        for mine in asked[f"{name}, again"]:
            assert sorted(mine) == list(range(8)), name
