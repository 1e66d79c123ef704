# SPDX-License-Identifier: Apache-2.0
"""Options: those that change while a process runs (torch_spmd/device/options.py), bad variables."""

import pytest
import torch
from processes import run_python
from reported import reported

import torch_spmd as spmd
from torch_spmd import _C
from torch_spmd.device import options


def compiles(work):
    before = reported()["compiles"]
    work()
    return reported()["compiles"] - before


def product():
    """Of a cut and an uncut matrix, and a chain of ops from it, the first of which is recorded."""
    mesh = spmd.make_mesh((4,), ("x",))
    a = spmd.mark_sharding(torch.ones(8, 4).to("spmd"), mesh, ("x", None))
    return (a @ torch.ones(4, 4).to("spmd")).relu().exp().sum(1).cpu()


@pytest.mark.parametrize(
    "change",
    [
        {"coalesce": True},
        {"deduplicate": False},
        {"turns": False},
        {"turns": None},
        {"price_moves": False},
    ],
    ids=str,
)
def test_a_program_is_found_only_with_the_options_that_made_it(change):
    product()
    assert compiles(product) == 0
    with options.update(**change):
        assert compiles(product) == 1
        assert compiles(product) == 0
    assert compiles(product) == 0


@pytest.mark.parametrize("change", [{"check_passes": False}, {"replay": False}], ids=str)
def test_what_does_not_change_programs_does_not_compile_them_anew(change):
    product()
    with options.update(**change):
        assert compiles(product) == 0


def test_options_are_as_before_whatever_happens_within():
    before = _C.options().coalesce, _C.options().turns
    with pytest.raises(ZeroDivisionError), options.update(coalesce=not before[0], turns=None):
        spmd.config.update(coalesce=before[0])
        raise ZeroDivisionError
    assert (_C.options().coalesce, _C.options().turns) == before


def test_an_unknown_option_is_told_which_there_are():
    words = (
        "there is no setting 'colaesce'; there are check_passes, coalesce, deduplicate, dump, "
        "memory_limit, one_place, price_moves, replay, turns, verify"
    )
    with pytest.raises(ValueError, match=words):
        options.update(colaesce=True)


@pytest.mark.parametrize(
    ("variable", "value", "says"),
    [
        ("SPMD_COALESCE", "maybe", "SPMD_COALESCE is 'maybe', which is neither 0 nor 1"),
        ("SPMD_NUM_DEVICES", "-1", "which is not a positive number of devices"),
        ("SPMD_PROGRAM_MEMORY", "1G", "SPMD_PROGRAM_MEMORY is '1G', which is not a number of MiB"),
    ],
)
def test_a_bad_variable_is_named_when_the_device_is_first_used(variable, value, says):
    script = "import torch, torch_spmd; torch.ones(2).to('spmd').sum().item()"
    done = run_python("-c", script, **{variable: value})
    assert done.stderr.splitlines()[-1].startswith("ValueError: ")
    assert says in done.stderr.splitlines()[-1]
