# SPDX-License-Identifier: Apache-2.0
"""States of random numbers of the host, as trees that can be saved."""

from __future__ import annotations

import random
import sys
from collections.abc import Mapping
from typing import Any

import torch


def host_state() -> dict[str, Any]:
    """Of PyTorch, Python, and numpy if it is in use."""
    state: dict[str, Any] = {"torch": torch.get_rng_state(), "python": random.getstate()}
    if "numpy.random" in sys.modules:
        kind, words, *others = sys.modules["numpy.random"].get_state()
        state["numpy"] = [kind, words.tolist(), *others]
    return state


def set_host_state(state: Mapping[str, Any]) -> None:
    """Sets what `host_state` returned, or JSON made of it."""
    torch.set_rng_state(_bytes(state["torch"]))
    random.setstate(_of_python(state["python"]))
    if "numpy" in state:
        import numpy

        numpy.random.set_state(tuple(state["numpy"]))


def to_json(state: Mapping[str, Any]) -> dict[str, Any]:
    return {**state, "torch": state["torch"].tolist()}


def from_json(state: Mapping[str, Any]) -> dict[str, Any]:
    return {**state, "torch": _bytes(state["torch"]), "python": _of_python(state["python"])}


def _bytes(state: Any) -> torch.Tensor:
    return torch.as_tensor(state, dtype=torch.uint8, device="cpu")


def _of_python(state: Any) -> tuple[Any, ...]:
    version, words, spare = state
    return version, tuple(words), spare


def generator_state(generator: Any) -> Any:
    """The state of a generator of PyTorch, Python or numpy; None of anything else."""
    if isinstance(generator, torch.Generator):
        return generator.get_state()
    if isinstance(generator, random.Random):
        return generator.getstate()
    numpy: Any = sys.modules.get("numpy.random")
    if numpy is not None and isinstance(generator, numpy.Generator):
        return generator.bit_generator.state
    return None


def set_generator_state(generator: Any, state: Any) -> None:
    """Sets what `generator_state` returned."""
    if isinstance(generator, torch.Generator):
        generator.set_state(_bytes(state))
    elif isinstance(generator, random.Random):
        generator.setstate(_of_python(state))
    else:
        generator.bit_generator.state = state
