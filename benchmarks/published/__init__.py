# SPDX-License-Identifier: Apache-2.0
"""Training runs whose speed was published, planned on the machines that they ran on."""
