# SPDX-License-Identifier: Apache-2.0
"""What torch_spmd costs over eager PyTorch: see `python -m benchmarks.speed --help`."""
