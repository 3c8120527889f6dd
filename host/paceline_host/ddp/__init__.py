# SPDX-License-Identifier: Apache-2.0
"""Synchronised training of ranks with unequal shares, as the host runs it."""
