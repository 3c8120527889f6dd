# SPDX-License-Identifier: Apache-2.0
"""The program on a board: meters joules, trains its share, reports both. Never imports paceline_host."""
