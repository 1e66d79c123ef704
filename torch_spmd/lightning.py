# SPDX-License-Identifier: Apache-2.0
"""The name that `torch_spmd.integrations.lightning` had in torch_spmd 0.1."""

import warnings

from torch_spmd.integrations.lightning import Accelerator, FabricStrategy, Strategy

__all__ = ["Accelerator", "FabricStrategy", "Strategy"]

text = "torch_spmd: torch_spmd.lightning is now torch_spmd.integrations.lightning"
warnings.warn(text, DeprecationWarning, stacklevel=2)
