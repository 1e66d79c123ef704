# SPDX-License-Identifier: Apache-2.0
"""`LoweringContext`: the text of the work that ends in some tensors, and its inputs."""

from __future__ import annotations

import json
from collections.abc import Sequence

from torch import Tensor

from torch_spmd import _C
from torch_spmd.torch_xla import _hlo, _hlo_module, _marks


class LoweringContext:
    """Holds the instructions of pending work and the tensors that it reads. There is no serialized
    module of XLA's behind it."""

    def __init__(self, name: str = "") -> None:
        self._name = name or "IrToHlo"
        self._module = _hlo_module.Module("")
        self._inputs: dict[int, Tensor] = {}
        self._numbers: list[tuple[Tensor, int]] = []

    def build(self, tensors: Sequence[Tensor]) -> None:
        marked = _marks.marked()
        self._module = _hlo.module([getattr(t, "global_tensor", t) for t in tensors], marked)
        numbers = {
            name: made.parameter
            for name, made in self._module.parameters.items()
            if made.parameter is not None
        }
        self._inputs = {
            numbers[f"%x{position}"]: tensor
            for position, (_, tensor) in enumerate(_C.pending_calls().inputs())
            if f"%x{position}" in numbers
        }
        self._numbers = [
            (t, numbers[str(position)])
            for position, t in enumerate(marked)
            if str(position) in numbers
        ]

    def hlo_text(self) -> str:
        """The fields of XLA's `HloModuleProto` in the text format of protocol buffers."""
        return _hlo_module.proto_text(self._module.fields(self._name))

    def hlo_json(self) -> str:
        """The same fields as JSON."""
        return json.dumps(self._module.fields(self._name))

    def hlo(self) -> bytes:
        """The text, for `xla_builder.computation_from_module_proto`."""
        return self._module.text(self._name).encode()

    def device_parameter_id_tensor_mapping(self) -> dict[int, Tensor]:
        """The tensors that the work reads, as copies on the host, by their number in it."""
        return dict(self._inputs)

    def parameter_id_tensor_mapping(self) -> dict[int, Tensor]:
        """As `device_parameter_id_tensor_mapping`."""
        return dict(self._inputs)

    def tensor_parameter_id(self, t: Tensor) -> int:
        """The number of a marked tensor that the work reads; -1 for another."""
        t = getattr(t, "global_tensor", t)
        return next((number for tensor, number in self._numbers if tensor is t), -1)
