# SPDX-License-Identifier: Apache-2.0
"""What training scripts of torch_xla print their progress with."""
