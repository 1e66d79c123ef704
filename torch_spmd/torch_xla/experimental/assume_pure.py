# SPDX-License-Identifier: Apache-2.0
"""Functions that are said to have no side effects. torch_xla does not trace such a function again;
here a step that is like the one before is followed rather than traced, whatever is said of it."""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any

from torch import nn

from torch_spmd.torch_xla.core import xla_model


def assume_pure(fn: Callable[..., Any], *, add_rng_seed_argument: bool = False) -> Any:
    """The function itself. With `add_rng_seed_argument` it has the keyword `rng_seed`, an int:
    what it draws depends on that only, and what is drawn behind it does not depend on it.

    Errors: AssertionError if `rng_seed` is not given.
    """
    if not add_rng_seed_argument:
        return fn

    @functools.wraps(fn)
    def seeded(*args: Any, rng_seed: Any = None, **kwargs: Any) -> Any:
        assert rng_seed is not None, "Missing keyword argument rng_seed."
        with xla_model.fork_rng():
            xla_model.set_rng_state(int(rng_seed))
            return fn(*args, **kwargs)

    return seeded


class PureModule(nn.Module):
    """A module that calls `module`."""

    def __init__(self, module: nn.Module) -> None:
        super().__init__()
        self._module = module

    def forward(self, *args: Any, **kwargs: Any) -> Any:
        return self._module(*args, **kwargs)
