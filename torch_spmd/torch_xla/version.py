# SPDX-License-Identifier: Apache-2.0
"""The release of PyTorch/XLA whose names this package has."""

__version__ = "2.9.0+torch_spmd"
