# The Transformer in 18 Questions: `make help` lists what there is.
# Needed: Python 3.11 or newer, git and make. The rest goes into .venv.

PYTHON ?= python3
VENV   := .venv
BIN    := $(VENV)/bin
READY  := $(VENV)/.ready
JOBS   ?= 2
PORT   ?=

.DEFAULT_GOAL := help
.PHONY: help book test check run export lab bench peers train translate clean

help: ## this list
	@echo "The Transformer in 18 Questions"
	@awk -F ':.*## ' '/^[a-z]+:.*## / { printf "  make %-10s %s\n", $$1, $$2 }' $(MAKEFILE_LIST)
	@echo "  PYTHON=python3.12 make ... makes the environment with another Python"

# The environment: made when it is missing, brought up to date when the pins
# or the package's needs change. The package itself is installed in place.
$(READY): requirements.txt pyproject.toml
	@command -v "$(PYTHON)" >/dev/null || { echo "no '$(PYTHON)' here: install Python 3.11 or newer, or say PYTHON=/path/to/python"; exit 1; }
	@"$(PYTHON)" -c 'import sys; sys.exit(sys.version_info < (3, 11))' || { echo "'$(PYTHON)' is $$("$(PYTHON)" --version 2>&1); 3.11 or newer is needed: say PYTHON=/path/to/newer/python"; exit 1; }
	@if [ -e $(VENV) ] && ! $(BIN)/python -c 'import sys, pip; sys.exit(sys.version_info < (3, 11))'; then \
	    echo "$(VENV) is broken or holds an older Python; making it anew"; rm -rf $(VENV); fi
	@[ -x $(BIN)/python ] || { echo "making $(VENV)"; "$(PYTHON)" -m venv $(VENV); } \
	    || { rm -rf $(VENV); echo "'$(PYTHON)' can make no environment: install its venv package (Debian: python3-venv)"; exit 1; }
	$(BIN)/python -m pip install --quiet --disable-pip-version-check -r requirements.txt
	$(BIN)/python -m pip install --quiet --disable-pip-version-check --no-deps -e .
	@touch $@

book: $(READY) ## the HTML book, from the outputs stored in the notebooks
	$(BIN)/jupyter-book build . -W -n --keep-going
	@touch _build/html/.nojekyll
	@echo "The book is ready. Open $(CURDIR)/_build/html/index.html"

test: $(READY) ## the tests, then every stored output against a new run
	$(BIN)/python -m pytest
	$(BIN)/python -m pytest --nbval book/

check: $(READY) ## seconds: export in sync, imports, outputs, links, lint
	$(BIN)/python tools/check.py

run: $(READY) ## execute and store: make run CH=12, or all without CH
	$(BIN)/python tools/run.py -j $(JOBS) $(CH)

export: $(READY) ## notebooks -> src/transformer18
	$(BIN)/python tools/export.py

lab: $(READY) ## open the notebooks in JupyterLab
	$(BIN)/jupyter-lab $(if $(PORT),--port $(PORT)) book

# make bench FULL=1 checks all floors: quiet machine, forty minutes at most.
bench: peers ## speed against PyTorch and CTranslate2, minutes (FULL=1: all)
	$(BIN)/python benchmarks/bench.py $(if $(FULL),--full) $(ARGS)

peers: $(READY) ## the libraries that `make bench` compares with
	$(BIN)/python -m pip install --quiet --disable-pip-version-check -e ".[bench]"

# make train DATA="pairs.tsv", or DATA="train.en train.de" ARGS="--steps 100"
train: $(READY) ## train a small translator (DATA="files", ARGS="options")
	$(BIN)/python -m transformer18 train $(foreach file,$(DATA),--data "$(file)") $(ARGS)

# The sentence goes through the environment, so that the shell takes no
# offence at apostrophes, quotes and dollars.
translate: export SENTENCE := $(value TEXT)
translate: $(READY) ## translate: make translate TEXT="Where is the station?"
	@[ -n "$$SENTENCE" ] || { echo 'say what to translate: make translate TEXT="Where is the station?"'; exit 1; }
	@$(BIN)/python -m transformer18 translate $(ARGS) -- "$$SENTENCE"

clean: ## remove what was built (the environment stays)
	rm -rf _build build dist .pytest_cache .ruff_cache src/*.egg-info
	find book src tests tools -name __pycache__ -type d -prune -exec rm -rf {} +
	find book -name .ipynb_checkpoints -type d -prune -exec rm -rf {} +
