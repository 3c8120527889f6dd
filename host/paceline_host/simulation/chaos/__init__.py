# SPDX-License-Identifier: Apache-2.0
"""One run under faults, all of them drawn from one seed, and the promises checked after every event.

`plan` says what is drawn, `wire` what becomes of messages, `disk` what survives a crash; `board` and `host` can fail,
`faults` are what happens to them; `truth` is what ought to come out, `witness` checks it, `world` joins all of it.
"""
