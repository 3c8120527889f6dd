# SPDX-License-Identifier: Apache-2.0
"""The program on the PC: plans rounds, aggregates, keeps the journal. Never imports paceline_agent."""
