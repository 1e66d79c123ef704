# SPDX-License-Identifier: Apache-2.0
"""The cases of cases.py give the same bits in jobs of 1, 2 and 4 processes."""

from pathlib import Path

import cases
import job
import pytest
import torch

pytestmark = pytest.mark.xdist_group("processes")


@pytest.fixture(scope="module")
def alone(tmp_path_factory):
    """In one process, tile by tile."""
    folder = tmp_path_factory.mktemp("alone")
    script = Path(cases.__file__)
    (ended,) = job.run(script, 1, 120, [str(folder)], SPMD_NUM_DEVICES="8", SPMD_ONE_PLACE="0")
    assert ended.code == 0, ended.err
    return torch.load(folder / "0.pt")


@pytest.fixture(scope="module", params=[2, 4])
def together(request, tmp_path_factory):
    """What each process of a job computes."""
    folder = tmp_path_factory.mktemp("together")
    script = Path(cases.__file__)
    ends = job.run(script, request.param, 240, [str(folder)], SPMD_NUM_DEVICES="8")
    for ended in ends:
        assert ended.code == 0, ended.err
        assert "8 virtual devices in" in ended.out
    return [torch.load(folder / f"{rank}.pt") for rank in range(request.param)]


@pytest.mark.parametrize("name", list(cases.CASES))
def test_the_same_bits(alone, together, name):
    for results in together:
        assert results[name].keys() == alone[name].keys()
        for key, value in alone[name].items():
            assert torch.equal(results[name][key], value), key
