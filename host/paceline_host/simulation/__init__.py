# SPDX-License-Identifier: Apache-2.0
"""Runs in virtual time: the production machines, controller and journal over boards that are models. No socket, no
thread, no clock of this machine; the same scenario and seed give the same journal, byte for byte.

`clock` says what happens when, `models` what boards cost, `line` how long messages take, `board` and `host` drive the
machines, `faults` changes boards on the way, `world` joins them for one run, `alone` asks the controller only. `chaos`
is for runs in which nothing can be relied on but what was promised.
"""
