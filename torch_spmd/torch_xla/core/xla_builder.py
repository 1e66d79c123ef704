# SPDX-License-Identifier: Apache-2.0
"""Texts of computations. Nothing here builds a computation of XLA's."""

from __future__ import annotations

from typing import Any


class Computation:
    """A name and a text."""

    def __init__(self, name: str, text: str) -> None:
        self.name, self.text = name, text


def computation_from_module_proto(name: str, proto: bytes) -> Computation:
    """Of what `LoweringContext.hlo` returned."""
    return Computation(name, proto.decode())


def get_computation_hlo(computation: Computation) -> str:
    return computation.text


def call_jax(
    jax_func: Any,
    args: Any,
    kwargs: Any = None,
    name: str | None = None,
    override_hash: str | None = None,
) -> Any:
    """Errors: NotImplementedError: what a function of JAX compiles to is a program of XLA's."""
    raise NotImplementedError(
        f"call_jax: {name or getattr(jax_func, '__name__', jax_func)} is a function of JAX, which "
        "the device does not run; write it in PyTorch"
    )
