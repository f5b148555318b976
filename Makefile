# make demo   sets up .venv, then one experiment on the embedded default
# make test   sets up .venv, then linters, types, import contracts and the test suite
# make lint   the first half of `make test`;  make format  puts right what a formatter can
# make bench  how fast clients train and are judged, beside PEFT's loop, Flower and the frozen base
# make docs   the pages as a site, in build/site
# make tables   the tables of the pages that rest on kept results, written anew
# make results  which kept results of results/ are missing, or of an earlier version
# make clean  removes what the others made
#
# Another Python: make test PYTHON=/path/to/python3.12.  Some tests only: make test ARGS="-k cluster".

PYTHON ?= python3
ARGS ?=
VENV := .venv
BIN := $(VENV)/bin

export PIP_DISABLE_PIP_VERSION_CHECK := 1
export PIP_NO_INPUT := 1

.PHONY: demo test lint format bench docs tables results clean
.DELETE_ON_ERROR:

demo: $(VENV)/.installed
	$(BIN)/python -m raypref.run fedgd

test: lint
	$(BIN)/python -m pytest -n logical --maxprocesses 4 --dist loadgroup --durations 40 $(ARGS)

lint: $(VENV)/.installed-dev
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy
	$(BIN)/lint-imports

format: $(VENV)/.installed-dev
	$(BIN)/ruff check --fix .
	$(BIN)/ruff format .

bench: $(VENV)/.installed
	$(BIN)/python benchmarks/speed.py $(ARGS)

docs: $(VENV)/.installed
	$(BIN)/python -m pip install -q -c constraints.txt -e '.[docs]'
	NO_MKDOCS_2_WARNING=1 $(BIN)/mkdocs build --strict
	@echo "the pages: build/site/index.html"

tables: $(VENV)/.installed
	$(BIN)/python docs/tables.py

results: $(VENV)/.installed
	$(BIN)/python -m raypref.results $(ARGS)

# torch first and alone: whatever build of the pinned release is at hand (CPU or CUDA) then satisfies the rest.
$(VENV)/.installed: pyproject.toml constraints.txt
	@$(PYTHON) -c 'import sys; sys.version_info >= (3, 11) or sys.exit("raypref needs Python 3.11 or newer; $(PYTHON) is " + sys.version.split()[0] + ": make PYTHON=/path/to/python3.11 ...")'
	@echo "Setting up $(VENV) (2 GB or more; some minutes the first time)"
	$(PYTHON) -m venv $(VENV)
	$(BIN)/python -m pip install $$(grep '^torch==' constraints.txt)
	$(BIN)/python -m pip install -c constraints.txt -e .
	@touch $@

$(VENV)/.installed-dev: $(VENV)/.installed
	$(BIN)/python -m pip install -c constraints.txt -e '.[dev]'
	@touch $@

clean:
	rm -rf $(VENV) build dist *.egg-info .pytest_cache .mypy_cache .ruff_cache .import_linter_cache .hypothesis
	find raypref tune_spaces tests benchmarks -name __pycache__ -prune -exec rm -rf {} +
