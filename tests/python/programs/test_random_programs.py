# SPDX-License-Identifier: Apache-2.0
"""Random programs give on `spmd` what they give on the CPU.

`--full-programs N` runs N programs more, from seed `--first-program` on.
"""

import random
import re

import pytest
from random_known import KNOWN, known
from random_programs import Invalid, difference
from random_scope import write
from random_shortest import shortest

pytestmark = pytest.mark.modes("coalesced")

PROGRAMS, OF_A_TEST = 500, 50


def pytest_generate_tests(metafunc):
    if "first" in metafunc.fixturenames:
        more, begin = (metafunc.config.getoption(o) for o in ("full_programs", "first_program"))
        seeds = [*range(0, PROGRAMS, OF_A_TEST), *range(begin, begin + more, OF_A_TEST)]
        metafunc.parametrize("first", seeds)


def test_programs(first):
    for seed in range(first, first + OF_A_TEST):
        program = write(random.Random(seed))
        try:
            text = difference(program)
        except Invalid:
            continue  # PyTorch itself gives different results twice
        if text and not known(program, text):
            program = shortest(program)
            pytest.fail(f"seed {seed} {difference(program)}\n{program}", pytrace=False)


@pytest.mark.parametrize("bug", KNOWN, ids=lambda bug: bug.reason.replace(" ", "_"))
def test_known(bug):
    text = difference(bug.program)
    assert text, "right now: take it out of random_known.py"
    assert re.search(bug.text, text), text
    pytest.xfail(f"{bug.reason}: {text}")
