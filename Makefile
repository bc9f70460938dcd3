# Everything from a fresh clone with Python 3.11 to 3.14 and make: `make demo`, `make test`. `make help` lists the rest.

PYTHON := .venv/bin/python
READY  := .venv/.ready
TOOLS  := .venv-tools/.ready
HOT    := build/hot/.ready
SPARKS ?= 4.0.5 4.1.4 4.3.0
ON_EACH := tests/spark_consumer/jobs/test_spark_versions.py tests/spark_consumer/source/test_plain_session.py
ARGS   ?=
# Test processes, each with a PostgreSQL of its own: docs/decisions/0061.
WORKERS ?= 4
PYTEST := $(PYTHON) -m pytest
CODE   := gateway schemas spark_consumer tests
QUIET  := $(shell test -t 2 || echo --quiet)
# pip before 24.2 knows its own certificates only; uv and the downloads ask SSL_CERT_FILE and the system by themselves when told so.
CA_BUNDLE := $(or $(SSL_CERT_FILE),$(firstword $(wildcard /etc/ssl/certs/ca-certificates.crt /etc/pki/tls/certs/ca-bundle.crt /etc/ssl/cert.pem)))
ifneq ($(CA_BUNDLE),)
export PIP_CERT ?= $(CA_BUNDLE)
endif
export UV_SYSTEM_CERTS ?= true
export PYTHONUTF8 := 1
export PIP_DISABLE_PIP_VERSION_CHECK := 1
# Python is started hundreds of times: each start would compile everything that it imports.
unexport PYTHONDONTWRITEBYTECODE

.DEFAULT_GOAL := help
.PHONY: help demo test check archives format bench unit integration e2e long coverage spark-versions docs dist sbom changelog lock clean

help:  ## show this list
	@sed -n 's/^\([a-z0-9-]*\):.*## \(.*\)/  make \1|\2/p' $(MAKEFILE_LIST) | awk -F'|' '{ printf "%-20s %s\n", $$1, $$2 }'

demo: $(HOT)  ## a shop under load, from PostgreSQL to Spark; then compares every value; ARGS="--seconds 20 --keep"
	@PYTHONPATH=$(CURDIR)/build/hot .venv/bin/walgate demo $(ARGS)

test: $(READY)  ## check, then all tests except the long ones; ARGS="-k lsn", WORKERS=1
	@$(MAKE) --no-print-directory --jobs 2 check archives
	$(PYTEST) --numprocesses $(WORKERS) --dist loadfile --no-loadscope-reorder $(ARGS)

check: $(READY)  ## format, lint, types, import layers
	.venv/bin/ruff format --check .
	.venv/bin/ruff check .
	.venv/bin/mypy
	.venv/bin/lint-imports

archives: $(READY)  ## classes of Java programs in build/java, with which the tests start them in half the time
	-@$(PYTHON) -m tests.support.java_archives

format: $(READY)  ## reformat the code as `check` requires
	.venv/bin/ruff format .
	.venv/bin/ruff check --fix .

unit: $(READY)  ## tests that start no servers
	$(PYTEST) -m "not long and not integration and not e2e" $(ARGS)

integration: $(READY)  ## tests with real servers, without Spark
	$(PYTEST) -m "integration and not long" $(ARGS)

e2e: $(READY)  ## tests of the whole pipeline, including Spark
	$(PYTEST) -m "e2e and not long" $(ARGS)

long: $(READY)  ## long property tests, fuzzing, hundreds of kills
	$(PYTEST) -m long --timeout 3600 $(ARGS)

coverage: $(READY)  ## lines and branches of the pure core that tests without servers cover
	$(PYTHON) -m coverage run -m pytest -q -m "not long and not integration and not e2e"
	$(PYTHON) -m coverage report

# Delta has no release for 4.3: the source alone is tried there. The Python side of 4.0 and 4.1 leaves sockets open.
spark-versions: SOCKETS := ignore::pytest.PytestUnraisableExceptionWarning
spark-versions: $(READY)  ## the source, a mirror and changelogs on other releases of Spark, each in an environment in build/
	@for version in $(SPARKS); do \
	    $(MAKE) --no-print-directory build/spark-$$version/.ready || exit; \
	    case $$version in 4.3.*) chosen="not mirror" ;; *) chosen= ;; esac; \
	    build/spark-$$version/bin/python -m pytest -m "" -W $(SOCKETS) -k "$$chosen" $(ARGS) $(ON_EACH) || exit; \
	done

docs: $(TOOLS)  ## build the documentation site in build/site
	.venv-tools/bin/mkdocs build --strict

dist: $(TOOLS)  ## build wheels, source distribution and images into dist and Docker; ARGS="--only pure sdist --python 3.13"
	.venv-tools/bin/python tools/dist.py $(ARGS)

sbom: $(TOOLS)  ## write the bill of materials (CycloneDX) of Python packages and Java artifacts to build/sbom.json
	.venv-tools/bin/python tools/sbom.py build/sbom.json

changelog: $(TOOLS)  ## print the fragments of changelog.d as an entry of CHANGELOG.md
	.venv-tools/bin/towncrier build --draft --version next

bench: $(READY)  ## run the benchmark; ARGS are passed to it
	$(PYTHON) -m bench $(ARGS)

lock: $(READY)  ## resolve all versions again: Python packages and Java artifacts
	.venv/bin/uv pip compile --quiet --upgrade --universal --python-version 3.11 --generate-hashes --custom-compile-command "make lock" --group build -o requirements-build.lock
	.venv/bin/uv pip compile --quiet --upgrade --universal --python-version 3.11 --generate-hashes --custom-compile-command "make lock" --all-extras -o requirements.lock pyproject.toml
	.venv/bin/uv pip compile --quiet --upgrade --universal --python-version 3.11 --generate-hashes --custom-compile-command "make lock" --group tools -o requirements-tools.lock
	$(PYTHON) -m gateway.local.lock

clean:  ## remove the virtual environment, compiled modules and tool caches; keeps the download cache
	rm -rf .venv .venv-tools build .mypy_cache .pytest_cache .ruff_cache .import_linter_cache .hypothesis

# Done again only when a lock or the project's own file changes, and then in the environment that is there. Every package is held against its hash; the build tools come
# first, so that building PySpark and this project fetches nothing. uv is only the faster installer: pip does it as well.
$(READY): requirements-build.lock requirements.lock pyproject.toml
	@if $(PYTHON) -m pip --version >/dev/null 2>&1; then exit 0; fi; \
	python=; for one in python3.13 python3.14 python3.12 python3.11 python3; do \
	    if $$one -c 'import sys; sys.exit(not (3, 11) <= sys.version_info[:2] <= (3, 14))' 2>/dev/null; then python=$$one; break; fi; \
	done; \
	if [ -z "$$python" ]; then echo "Walgate needs Python 3.11, 3.12, 3.13 or 3.14: none is on the path" >&2; exit 1; fi; \
	if ! $$python -c 'import ensurepip, venv' 2>/dev/null; then \
	    echo "$$python cannot make virtual environments: install its venv package (Debian: apt install python3-venv)" >&2; exit 1; fi; \
	echo "making .venv with $$($$python -V)"; \
	$$python -m venv --clear .venv
	@$(PYTHON) -m pip install $(QUIET) --require-hashes -r requirements-build.lock
	@.venv/bin/uv pip install $(QUIET) --python $(PYTHON) --no-build-isolation --require-hashes -r requirements.lock \
	    || $(PYTHON) -m pip install $(QUIET) --no-build-isolation --require-hashes -r requirements.lock
	@$(PYTHON) -m pip install $(QUIET) --no-deps --no-build-isolation --editable .
	@touch $@

$(TOOLS): $(READY) requirements-tools.lock
	@$(PYTHON) -m venv --clear .venv-tools
	@.venv/bin/uv pip install $(QUIET) --python .venv-tools/bin/python --require-hashes -r requirements-tools.lock
	@touch $@

# Everything as in .venv but PySpark, and Delta where it has no release for it.
build/spark-%/.ready: $(READY)
	@echo "PySpark $*: making build/spark-$*, which downloads about 450 MB"
	@rm -rf $(@D) && .venv/bin/uv venv --quiet --python $(PYTHON) $(@D)
	@.venv/bin/uv pip install $(QUIET) --python $(@D)/bin/python --require-hashes -r requirements-build.lock
	@.venv/bin/uv pip freeze --python $(PYTHON) --exclude-editable \
	    | grep -v -e '^pyspark==' $(if $(filter 4.3.%,$*),-e '^delta-spark==') >$(@D)/others.txt
	@.venv/bin/uv pip install $(QUIET) --python $(@D)/bin/python --no-build-isolation -r $(@D)/others.txt pyspark==$*
	@.venv/bin/uv pip install $(QUIET) --python $(@D)/bin/python --no-build-isolation --no-deps --editable .
	@touch $@

# The modules that every row passes through, compiled where there is a C compiler; without one the folder stays empty, and what
# is in .venv runs.
$(HOT): $(READY) tools/compile_hot.py $(shell find gateway schemas -type f -not -name '*.pyc')
	@rm -rf build/hot && mkdir -p build/hot
	@$(PYTHON) tools/compile_hot.py --if-possible build/hot >build/hot/.ready
