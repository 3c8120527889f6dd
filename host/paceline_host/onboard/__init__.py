# SPDX-License-Identifier: Apache-2.0
"""The way of the agent onto boards: a bundle, the user's own ssh, keys both ways, and a list of what is where."""
