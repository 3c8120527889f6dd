# SPDX-License-Identifier: Apache-2.0
"""Tables of runs: experiments repeated over seeds, declared in a file with what is expected of them."""
