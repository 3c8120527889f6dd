# SPDX-License-Identifier: Apache-2.0
"""Studies: many trainings that one file declares beforehand, and what came of them. `design` is the file, `pool` and
`worker` train its cells, `figures` are the numbers, `page` writes them down.
"""
