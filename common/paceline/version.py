# SPDX-License-Identifier: Apache-2.0
"""The version of all three packages. pyproject.toml states the same, and a test compares them."""

VERSION = "0.1.0"
