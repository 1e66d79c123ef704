# SPDX-License-Identifier: Apache-2.0
"""Meshes, specs, marks, and rules over the names of parameters."""
