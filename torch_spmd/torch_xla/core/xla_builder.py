# SPDX-License-Identifier: Apache-2.0
"""Texts of computations. Nothing here builds a computation of XLA's."""

from __future__ import annotations


class Computation:
    """A name and a text."""

    def __init__(self, name: str, text: str) -> None:
        self.name, self.text = name, text


def computation_from_module_proto(name: str, proto: bytes) -> Computation:
    """Of what `LoweringContext.hlo` returned."""
    return Computation(name, proto.decode())


def get_computation_hlo(computation: Computation) -> str:
    return computation.text
