# SPDX-License-Identifier: Apache-2.0
"""The device `spmd` as PyTorch sees it, its backend and its settings."""
