# SPDX-License-Identifier: Apache-2.0
"""Regime `hfl`: silos of synchronised ranks, each over data of its own, whose models the host averages each round."""
