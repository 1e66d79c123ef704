# SPDX-License-Identifier: Apache-2.0
"""Optimizers that do not wait for the device: PyTorch's own do not."""

from torch.optim import SGD, Adam, AdamW

__all__ = ["SGD", "Adam", "AdamW"]
