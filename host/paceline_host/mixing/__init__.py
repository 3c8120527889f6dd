# SPDX-License-Identifier: Apache-2.0
"""Regime async: the host mixes each update into the model as it arrives, and nobody waits for anybody (FedAsync)."""
