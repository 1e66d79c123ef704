# SPDX-License-Identifier: Apache-2.0
"""What `torch.compile(backend="openxla")` calls with a traced graph: the device compiles by itself,
so the graph is recorded as it is."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import torch

from torch_spmd.torch_xla import _compiled


def extract_compiled_graph(
    model: torch.fx.GraphModule, inputs: Sequence[Any]
) -> Callable[..., Any]:
    def recorded(*args: Any) -> Any:
        results = model(*args)
        _compiled.recorded(results)
        return results

    return recorded
