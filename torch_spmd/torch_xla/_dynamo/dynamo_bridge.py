# SPDX-License-Identifier: Apache-2.0
"""What `torch.compile(backend="openxla")` calls with a traced graph."""

from torch_spmd.torch_xla.core.dynamo_bridge import (
    extract_compiled_graph as extract_compiled_graph,
)
