# SPDX-License-Identifier: Apache-2.0
"""How much was compiled, run and computed on the host so far, as spmd.debug.explain_compile() says
below its table."""

from __future__ import annotations

import re

import torch_spmd as spmd

NOTE = re.compile(
    r"(?P<compiles>\d+) programs compiled; (?P<runs>\d+) runs, (?P<cache_hits>\d+) of them of a "
    r"known program; (?P<host_fallbacks>\d+) ops ran on host copies"
)


def reported() -> dict[str, int]:
    """The numbers "compiles", "runs", "cache_hits" and "host_fallbacks"."""
    found = NOTE.fullmatch(spmd.debug.explain_compile().note)
    assert found is not None
    return {name: int(number) for name, number in found.groupdict().items()}
