# Everything works from a clean clone: environments are made when they are needed, and again when
# pyproject.toml or the pinned versions change. PYTHON names the interpreter they are made from.
.DEFAULT_GOAL := help
.DELETE_ON_ERROR:
.SUFFIXES:
SHELL := /bin/bash
.SHELLFLAGS := -euo pipefail -c

PYTHON ?= python3
VENV := .venv
FLOOR := .venv-floor
DOCS := .venv-docs
# Two more than there are processors: tests wait a lot.
JOBS ?= $(shell expr $$(getconf _NPROCESSORS_ONLN) + 2)
SOURCES := services adapters/python adapters/examples clients/python clients/examples tests

PIP_INSTALL = bin/pip install --quiet --disable-pip-version-check --no-input
# The constraints hold for the build backend too (by either name, as pip changed its mind).
pinned = PIP_CONSTRAINT=$(1) PIP_BUILD_CONSTRAINT=$(1)

# As our own programs have it: gRPC's fork handlers can crash the children of a process that starts many.
export GRPC_ENABLE_FORK_SUPPORT := 0

# Tests start thousands of interpreters: each would compile all that it imports.
unexport PYTHONDONTWRITEBYTECODE

.PHONY: help run test test-agents test-chaos test-conformance test-go test-typescript test-rust test-java test-helm test-cluster test-partitions dragoman-exec lint docs proto proto-go proto-typescript proto-baseline constraints bench bench-check clean

help: ## list the targets
	@awk -F ':.*## ' '/^[a-z-]+:.*## / { printf "make %-15s %s\n", $$1, $$2 }' $(MAKEFILE_LIST)

run: $(VENV)/.runtime ## show a whole run offline; AGENT=claude_code PROMPT='...' runs a real agent
	@if [ -z "$${AGENT:-}$${PROMPT:-}" ]; then $(VENV)/bin/dragoman demo; else \
	  $(VENV)/bin/dragoman run "$${AGENT:?is needed beside PROMPT}" "$${PROMPT:?is needed beside AGENT}"; fi

test: $(VENV)/.dev $(FLOOR)/.ready ## all tests that need no agent download, JOBS of them at once, then the contract and the client on the oldest versions
	$(VENV)/bin/python -m pytest -n $(JOBS) --dist worksteal -m 'not agents and not chaos and not conformance and not go and not typescript and not rust and not java and not helm and not cluster'
	$(FLOOR)/bin/python -m pytest -n $(JOBS) --dist worksteal -m 'not agents' tests/protocol tests/client $(wildcard tests/contract)

test-agents: $(VENV)/.dev ## install the pinned agent programs and drive the real ones; AGENT=codex drives one
	scripts/install-agents
	@if [ -z '$(AGENT)' ]; then rm -rf .agents/results; fi
	$(VENV)/bin/python scripts/test-agents $(AGENT)

test-chaos: $(VENV)/.dev ## kill clients, routers, adapters, guards, agents and connections; SEED=, KILLS=, CASE= repeats one
	SEED='$(SEED)' KILLS='$(KILLS)' CASE='$(CASE)' $(VENV)/bin/python -m pytest -o faulthandler_timeout=0 -m chaos tests/chaos

test-conformance: $(VENV)/.dev ## break each rule of the conformance kit by an adapter of its own, and examine that
	$(VENV)/bin/python -m pytest -n $(JOBS) --dist worksteal -m conformance tests/conformance tests/cli/test_new_adapter.py

test-go: $(VENV)/.dev ## the Go modules and adapters: stubs as generated, vetted, tested, examined; GO_TEST_FLAGS=-race
	@go=$$(scripts/install-go); export PATH="$$(dirname "$$go"):$$PATH" DRAGOMAN="$(abspath $(VENV))/bin/dragoman"; set -x; rm -rf build/go-stubs; \
	$(VENV)/bin/buf generate proto --template clients/go/buf.gen.yaml --output build/go-stubs; \
	diff -r build/go-stubs/dragomanv1 clients/go/dragomanv1; \
	for module in clients/go adapters/go; do (cd $$module; unformatted=$$(gofmt -l .); test -z "$$unformatted"; \
	  go vet ./...; go test $(GO_TEST_FLAGS) ./...); done
	@$(MAKE) --no-print-directory dragoman-exec
	@go=$$(scripts/install-go); cd adapters/go; "$$go" build -o ../../build/scribe-go ./examples/scribe; \
	"$$go" build -o ../../build/streamtext ./examples/streamtext; "$$go" build -o ../../build/scripted-go ./internal/scripted; \
	cd ../../clients/go; "$$go" build -o ../../build/hello-go ./examples/hello
	DRAGOMAN_PROCESS_ADAPTER=$(CURDIR)/build/dragoman-exec $(VENV)/bin/python -m pytest -n $(JOBS) -m 'not own_adapter' \
	  tests/adapters/process/test_{backpressure,faults,fuzz,journal,output,sidecar}.py
	$(VENV)/bin/python -m pytest -n $(JOBS) -m go tests/go tests/cli/test_new_adapter.py

test-typescript: $(VENV)/.dev ## the TypeScript packages: stubs as generated, compiled, tested on Node.js and Bun, examined
	scripts/check-toolchain nodejs
	npm ci --no-audit --no-fund
	npm ci --no-audit --no-fund --prefix adapters/typescript/claude-agent
	scripts/generate-typescript-stubs build/typescript-stubs
	diff -r build/typescript-stubs/src/gen clients/typescript/src/gen
	npm run lint --silent
	npm run build --silent
	npm run build --silent --prefix adapters/typescript/claude-agent
	npm test --silent --workspaces
	node_modules/.bin/bun test clients/typescript/dist/test/client.test.js
	$(VENV)/bin/python -m pytest -n $(JOBS) -m typescript tests/typescript tests/cli/test_new_adapter.py

test-rust: $(VENV)/.dev ## the Rust crate: formatted, without warnings, tested, its adapters examined
	scripts/check-toolchain rust
	cd adapters/rust && cargo fmt --check
	cd adapters/rust && cargo clippy --quiet --locked --all-targets -- -D warnings
	cd adapters/rust && cargo clippy --quiet --locked --all-features --all-targets -- -D warnings
	cd adapters/rust && cargo test --quiet --locked
	cd adapters/rust && cargo test --quiet --locked --all-features --lib spans
	$(VENV)/bin/python -m pytest -n $(JOBS) -m rust tests/rust tests/cli/test_new_adapter.py

test-java: $(VENV)/.dev ## the Java client: generated, compiled, tested with a router; the program of its page, as the page runs it
	scripts/check-toolchain java maven
	$(VENV)/bin/python -m pytest -m java tests/java
	$(VENV)/bin/python scripts/check-docs docs/guides/java.md

test-helm: $(VENV)/.dev ## the Helm chart: linted, rendered, checked by the schemas of Kubernetes 1.30 to 1.37
	PATH="$$(scripts/install-helm):$$PATH" $(VENV)/bin/python -m pytest -n $(JOBS) -m helm tests/deploy

test-cluster: $(VENV)/.dev ## the chart and the images in a real Kubernetes of one node; as root, builds it for half an hour the first time
	cluster=$$(scripts/install-cluster); scripts/build-images router dragoman-exec claude-code codex systemd; PATH="$$(scripts/install-helm):$$PATH" \
	DRAGOMAN_CLUSTER="$$cluster" unshare --net $(VENV)/bin/python -m pytest -o faulthandler_timeout=0 -m cluster tests/cluster

test-partitions: $(VENV)/.dev ## two routers, an adapter and PostgreSQL in network namespaces, cut off from each other; as root
	unshare --net $(VENV)/bin/python -m pytest -o faulthandler_timeout=0 -m cluster tests/cluster/test_partitions.py

dragoman-exec: ## build build/dragoman-exec, the adapter process as one static program
	@go=$$(scripts/install-go); cd adapters/go; \
	CGO_ENABLED=0 "$$go" build -trimpath -ldflags '-s -w' -o ../../build/dragoman-exec ./cmd/dragoman-exec

lint: $(VENV)/.dev ## style, types, and the contract
	$(VENV)/bin/ruff check .
	$(VENV)/bin/ruff format --check .
	$(VENV)/bin/mypy $(SOURCES)
	$(VENV)/bin/buf lint proto
	$(VENV)/bin/buf format --diff --exit-code proto
	$(VENV)/bin/buf breaking proto --against proto/baseline.binpb

docs: $(DOCS)/.ready ## build the site of docs/ into build/site; a dead link or a missing page fails
	NO_MKDOCS_2_WARNING=1 DISABLE_MKDOCS_2_WARNING=true $(DOCS)/bin/mkdocs build --quiet --strict --site-dir build/site

proto: $(FLOOR)/.ready ## generate the Python stubs anew, with the oldest supported compiler
	scripts/generate-stubs

proto-go: $(VENV)/.dev ## generate the Go stubs anew
	PATH="$$(dirname "$$(scripts/install-go)"):$$PATH" $(VENV)/bin/buf generate proto --template clients/go/buf.gen.yaml --output clients/go

proto-typescript: $(VENV)/.dev ## generate the TypeScript stubs anew
	npm ci --no-audit --no-fund
	scripts/generate-typescript-stubs clients/typescript

proto-baseline: $(VENV)/.dev ## take the contract as it is as the one that is not broken any more
	$(VENV)/bin/buf build proto --exclude-source-info --output proto/baseline.binpb

constraints: $(VENV)/.dev $(FLOOR)/.ready $(DOCS)/.ready ## write down the versions that are installed now
	$(VENV)/bin/pip freeze --exclude-editable > constraints.txt
	$(FLOOR)/bin/pip freeze --exclude-editable > constraints-floor.txt
	$(DOCS)/bin/pip freeze --exclude-editable > constraints-docs.txt

bench: $(VENV)/.dev ## measure what Dragoman costs, in two minutes; FULL=1 takes a quarter of an hour and writes docs/performance.*
	$(VENV)/bin/python -m tests.bench $(if $(FULL),--full --publish)

bench-check: $(VENV)/.dev ## what has a bound; fails if a ratio is far from what it was
	$(VENV)/bin/python -m tests.bench --check

clean: ## remove what the other targets made
	rm -rf $(VENV) $(FLOOR) $(DOCS) .agents build dist .mypy_cache .ruff_cache .pytest_cache .hypothesis node_modules {clients,adapters}/typescript/{dist,node_modules} adapters/typescript/claude-agent/{dist,node_modules}

# --- environments; a stamp is newer than what it was made from

$(VENV)/bin/python $(FLOOR)/bin/python $(DOCS)/bin/python:
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11))' || \
	  { echo 'Python 3.11 or newer is needed: make PYTHON=/path/to/python3 ...' >&2; exit 1; }
	$(PYTHON) -m venv $(@D:/bin=)

# What a user of Dragoman installs, and no more.
$(VENV)/.runtime: pyproject.toml constraints.txt | $(VENV)/bin/python
	$(call pinned,constraints.txt) $(VENV)/$(PIP_INSTALL) --editable .
	@touch $@

$(VENV)/.dev: pyproject.toml constraints.txt | $(VENV)/bin/python
	$(call pinned,constraints.txt) $(VENV)/$(PIP_INSTALL) --editable '.[dev]'
	@touch $(VENV)/.runtime $@

# The oldest versions supported; the compiler makes the stubs.
$(FLOOR)/.ready: pyproject.toml constraints-floor.txt | $(FLOOR)/bin/python
	$(call pinned,constraints-floor.txt) $(FLOOR)/$(PIP_INSTALL) --editable '.[test,jwt,proto]'
	@touch $@

# What builds the site; its grpcio-tools, as in .venv-floor, read the comments of the contract.
$(DOCS)/.ready: pyproject.toml constraints-docs.txt | $(DOCS)/bin/python
	$(call pinned,constraints-docs.txt) $(DOCS)/$(PIP_INSTALL) --editable '.[docs]'
	@touch $@
