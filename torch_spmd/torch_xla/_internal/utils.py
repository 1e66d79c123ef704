# SPDX-License-Identifier: Apache-2.0
"""Names of devices."""


def parse_xla_device(device: str) -> tuple[str, int]:
    """("TPU", 3) of "TPU:3"."""
    kind, number = device.split(":")
    return kind, int(number)
