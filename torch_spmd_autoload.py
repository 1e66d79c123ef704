# SPDX-License-Identifier: Apache-2.0
"""Called by `import torch` where this package is installed. It loads nothing unless
SPMD_TORCH_XLA=1 asks for it (docs/torch_xla.md)."""

import os


def load() -> None:
    if os.environ.get("SPMD_TORCH_XLA") == "1":
        import torch_spmd.torch_xla.install  # noqa: F401
