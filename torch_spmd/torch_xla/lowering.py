# SPDX-License-Identifier: Apache-2.0
"""`LoweringContext`: the text of the work that ends in some tensors, and its inputs."""

from __future__ import annotations

from collections.abc import Sequence

from torch import Tensor

from torch_spmd import _C
from torch_spmd.torch_xla import _hlo, _marks


class LoweringContext:
    """Holds the text of pending work and the tensors that it reads. There is no serialized module
    of XLA's behind it."""

    def __init__(self, name: str = "") -> None:
        self._name = name
        self._text = ""
        self._inputs: list[tuple[int, Tensor]] = []
        self._numbers: list[tuple[Tensor, int]] = []

    def build(self, tensors: Sequence[Tensor]) -> None:
        self._text = _hlo.text([getattr(t, "global_tensor", t) for t in tensors])
        self._inputs = list(_C.pending_calls().inputs())
        self._numbers = [(t, self._inputs[position][0]) for t, position in _marks.marked_inputs()]

    def hlo_text(self) -> str:
        return self._text.replace("IrToHlo", self._name or "IrToHlo")

    def hlo(self) -> bytes:
        """The text, for `xla_builder.computation_from_module_proto`."""
        return self.hlo_text().encode()

    def device_parameter_id_tensor_mapping(self) -> dict[int, Tensor]:
        """The tensors that the work reads, as copies on the host, by their number in it."""
        return dict(self._inputs)

    def tensor_parameter_id(self, t: Tensor) -> int:
        """The number of a marked tensor that the work reads; -1 for another."""
        t = getattr(t, "global_tensor", t)
        return next((number for tensor, number in self._numbers if tensor is t), -1)
