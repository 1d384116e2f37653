# `make demo` and `make test` do everything on a fresh machine with python3 (3.11+) and a C compiler.

PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
STRICT := -std=gnu11 -D_GNU_SOURCE -O2 -Wall -Wextra -Wconversion -Wshadow -Werror
SOURCES := pyproject.toml setup.py $(shell find csrc src -name '*.[ch]' -o -name '*.py' -o -name '*.pyx' -o -name '*.j2')
C_FILES := $(wildcard csrc/*.c)

.PHONY: demo test test-quick test-wire test-real test-lower trials services lint lint-c fuzz dist clean

demo: $(VENV)/installed
	rm -rf demo-run
	$(BIN)/percentes-fast run --config configs/demo.yaml --out demo-run
	@echo "Look at demo-run/report.html"

# needs sshd, Docker and libfaketime: as root on Debian what is missing is installed
test: $(VENV)/installed-test services lint
	$(BIN)/python -m pytest -n 3 --dist loadfile --no-loadscope-reorder -m "not real and not alone"
	$(BIN)/python -m pytest -m alone

services:
	tests/install_services.sh

# clocks that are shifted, drift, slew and step, over unequal and jittering delays
trials: $(VENV)/installed-test services
	$(BIN)/python tests/clock_trials.py --trials $(or $(TRIALS),200)

test-quick: $(VENV)/installed-test
	$(BIN)/python -m pytest -m "not real and not slow"

# the wire: prints cases x engines x ways of cutting
test-wire: $(VENV)/installed-test
	$(BIN)/python -m pytest -q -s -rN tests/test_wire.py

# 3.5 GB the first time; LLAMA_SERVER=/path/to/llama-server adds llama.cpp
test-real: $(VENV)/installed-test services
	tests/real/install_vllm.sh
	test -f .real/model/config.json || .real/venv/bin/python tests/real/toy_model.py
	test -z "$(LLAMA_SERVER)" || test -f .real/tiny.gguf || $(MAKE) .real/tiny.gguf
	$(BIN)/python -m pytest -m real -s tests/real

.real/tiny.gguf:
	test -d .real/gguf || $(PYTHON) -m venv .real/gguf
	.real/gguf/bin/python -m pip install -q gguf
	.real/gguf/bin/python tests/real/toy_gguf.py

# the oldest versions that pyproject.toml promises, in an environment of their own
test-lower:
	$(PYTHON) -m venv .venv-lower
	.venv-lower/bin/python -m pip install -q -c tests/lower-bounds.txt ".[test]"
	.venv-lower/bin/python -m pytest -m "not real and not slow" -p no:cacheprovider

lint: $(VENV)/installed-test lint-c
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy
	$(BIN)/clang-format --dry-run --Werror csrc/*.c csrc/*.h bench/*.c fuzz/*.c fuzz/*.h

lint-c:
	for file in $(C_FILES); do $(CC) $(STRICT) -fsyntax-only $$file || exit 1; done

# needs clang; FUZZ_S=600: seconds a target
fuzz:
	$(PYTHON) fuzz/run.py --seconds $(or $(FUZZ_S),60)

dist: $(VENV)/installed-test
	$(BIN)/python -m build

clean:
	rm -rf build dist src/*.egg-info .venv .venv-lower demo-run

$(VENV)/bin/python:
	$(PYTHON) -m venv $(VENV)

$(VENV)/installed: $(VENV)/bin/python $(SOURCES)
	$(BIN)/python -m pip install -q .
	touch $@

$(VENV)/installed-test: $(VENV)/bin/python $(SOURCES)
	$(BIN)/python -m pip install -q ".[test,lint]"
	touch $@ $(VENV)/installed
