# SPDX-License-Identifier: Apache-2.0
"""The cases of cases.py give the same in jobs of 1, 2 and 4 processes.

With SPMD_EXACT=1, to the bit; otherwise sums may differ in their last bits.
"""

from pathlib import Path

import cases
import job
import pytest
import torch


@pytest.fixture(scope="module")
def alone(tmp_path_factory):
    """In one process, tile by tile."""
    folder = tmp_path_factory.mktemp("alone")
    script = Path(cases.__file__)
    (ended,) = job.run(script, 1, 120, [str(folder)], SPMD_NUM_DEVICES="8", SPMD_ONE_PLACE="0")
    assert ended.code == 0, ended.err
    return torch.load(folder / "0.pt")


# Processes, SPMD_EXACT and SPMD_SHARED_MEMORY.
@pytest.fixture(scope="module", params=[(2, "1", "0"), (4, "1", "1"), (2, "0", "1")], ids=str)
def together(request, tmp_path_factory):
    """What each process of a job computes, and whether its sums are exact."""
    processes, exact, shared = request.param
    folder = tmp_path_factory.mktemp("together")
    script = Path(cases.__file__)
    variables = {"SPMD_NUM_DEVICES": "8", "SPMD_EXACT": exact, "SPMD_SHARED_MEMORY": shared}
    ends = job.run(script, processes, 240, [str(folder)], **variables)
    for ended in ends:
        assert ended.code == 0, ended.err
        assert "8 virtual devices in" in ended.out
        assert ("that share memory" in ended.out) == (shared == "1")
    return [torch.load(folder / f"{rank}.pt") for rank in range(processes)], exact == "1"


@pytest.mark.parametrize("name", list(cases.CASES))
def test_the_same(alone, together, name):
    every, exact = together
    for results in every:
        assert results[name].keys() == alone[name].keys()
        for key, value in alone[name].items():
            got = results[name][key]
            # Replicas have the same bits in all processes, exact or not.
            assert torch.equal(got, every[0][name][key]), key
            if exact or not value.dtype.is_floating_point:
                assert torch.equal(got, value), key
            else:
                torch.testing.assert_close(got, value)
