# SPDX-License-Identifier: Apache-2.0
"""Parallel split learning on the host: who gives how much (plan), what is said when (machine), arithmetic (store)."""
