# SPDX-License-Identifier: Apache-2.0
# Two commands matter: `make demo` and `make test`. Both set up .venv/ first; what that takes is in tools/setup_venv.py.

PYTHON ?= python3
BIN    := .venv/bin
CMAKE  := $(BIN)/cmake --log-level=WARNING -G Ninja -DCMAKE_MAKE_PROGRAM=$(CURDIR)/$(BIN)/ninja -S .

.PHONY: help demo test test-vm test-board wheels sim soak fuzz check venv lint types core core-sanitized architecture clean
.DEFAULT_GOAL := help

help:
	@echo "make demo    train on an emulated fleet of eleven boards, compare three ways to divide the samples"
	@echo "make test    all checks and all tests"
	@echo "make test-vm sensors on a real kernel in a virtual machine; the first time it fetches 225 MB into build/vm"
	@echo "make test-board  a RISC-V board in emulation: the agent is installed, meters, trains, loses its power"
	@echo "make wheels  for boards of each kind, into dist/wheels; ARCH=\"riscv64 armhf\" for some"
	@echo "make sim     500 small runs in virtual time under faults that their seeds draw; says which seed breaks a promise"
	@echo "make soak    100 real kills of hosts, agents and trainers, in all regimes: half an hour; says which seed failed"
	@echo "make fuzz    mutated inputs for every decoder of foreign bytes, in Python and in C; EXECUTIONS=1000000 for more"
	@echo "make check   lint, formats, types, C warnings, import arrows, torch border"
	@echo "make venv    only the set-up: .venv/ with everything at the versions of constraints.txt"
	@echo "make clean   remove builds and caches; .venv/ and runs/ stay"

venv:
	@command -v $(PYTHON) >/dev/null || { \
	    echo "setup: no $(PYTHON) found: apt-get install python3 python3-venv python3-dev" >&2; exit 1; }
	@$(PYTHON) tools/setup_venv.py

demo: venv
	@$(BIN)/paceline data fetch mnist >/dev/null
	$(BIN)/paceline run experiments/demo.toml

test: check core-sanitized
	$(BIN)/ctest --test-dir build/core --output-on-failure --no-tests=error
	$(BIN)/ctest --test-dir build/core-sanitized --output-on-failure --no-tests=error
	$(BIN)/python -m pytest tests/agent/test_quota.py    # alone: it looks at shares of the processors
	$(BIN)/python -m pytest -n 2 --dist loadfile --ignore=tests/agent/test_quota.py \
	    $(addprefix --ignore=tests/,architecture common host system)
	$(BIN)/python -m pytest -n 2 --dist worksteal tests/common tests/host
	$(BIN)/python -m pytest -n 2 --dist worksteal tests/system    # whose processes wait most of the time

# Needs qemu-system-x86, make and gcc; the kernel comes by apt and is built below build/vm, nothing is installed.
# ARCH=riscv64 takes a RISC-V machine instead; then qemu-system-misc, opensbi and gcc-riscv64-linux-gnu.
ARCH ?= x86_64
test-vm: venv
	PACELINE_VM_FETCH=1 PACELINE_VM_MACHINE=$(ARCH) $(BIN)/python -m pytest tests/vm
	@$(BIN)/python -m tests.vm.joules

# A RISC-V board in emulation: installed on, measured, trained with, its power cut; and the wheels of other kinds of board
# in Debian's Pythons for them. Minutes; needs what test-vm needs for ARCH=riscv64, qemu-user-static, e2fsprogs and ssh.
test-board: venv
	$(BIN)/python -m pytest -s tests/arch/check_foreign.py tests/vm/check_board.py

# Needs the cross compilers that it names; `paceline boards bundle --arch riscv64 --wheels dist/wheels` packs what is made.
KINDS = $(if $(filter command line,$(origin ARCH)),$(ARCH),x86_64 aarch64 riscv64 armhf)
wheels: venv
	@$(BIN)/python tools/wheels.py $(KINDS)

# A quarter of the seeds under each regime. Prints those that break a promise, with the command that shows one again.
# FIRST=501: other seeds; SEEDS=100: fewer.
FIRST ?= 1
SEEDS ?= 500
sim: venv
	@echo pma ddp hfl psl | xargs -n 1 -P 2 sh -c \
	    '$(BIN)/paceline simulate --regime $$0 --chaos $(FIRST)-$$(($(FIRST) + $(SEEDS) / 4 - 1))'

# Prints each run's seed and what was killed; exit 1 when a run did not come to the end of an unbroken one. FIRST, as above.
KILLS ?= 100
soak: venv
	$(BIN)/python -m tests.system.kills --kills $(KILLS) --seed $(FIRST)

# What breaks a decoder is left in build/fuzz.
EXECUTIONS ?= 20000
SEED ?= 1
fuzz: core-sanitized
	build/core-sanitized/fuzz $(EXECUTIONS) $(SEED)
	$(BIN)/python -m tests.fuzz --executions $(EXECUTIONS) --seed $(SEED)

check: lint types core architecture

lint: venv
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/clang-format --dry-run -Werror $$(find core_c tests/core_c tests/vm -name '*.[ch]')

types: venv
	$(BIN)/mypy

# The C core as CMake builds it: every warning is an error; the second tree runs its tests under ASan and UBSan.
core: venv
	$(CMAKE) -B build/core -DPACELINE_WERROR=ON
	$(BIN)/cmake --build build/core

core-sanitized: venv
	$(CMAKE) -B build/core-sanitized -DPACELINE_WERROR=ON -DPACELINE_SANITIZE=ON
	$(BIN)/cmake --build build/core-sanitized

architecture: venv
	$(BIN)/python -m pytest -q tests/architecture

clean:
	rm -rf build dist *.egg-info .mypy_cache .pytest_cache .ruff_cache .hypothesis
	find . -name __pycache__ -not -path './.venv/*' -prune -exec rm -rf {} +
