# SPDX-License-Identifier: Apache-2.0
"""What the examples share. The models here are plain PyTorch."""
