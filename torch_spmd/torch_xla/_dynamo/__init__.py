# SPDX-License-Identifier: Apache-2.0
"""Where later releases have what `torch_xla.core.dynamo_bridge` had."""

from torch_spmd.torch_xla._dynamo import config as config
