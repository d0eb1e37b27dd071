# `make` lists what can be made.

GO   ?= go
ARGS ?=
BIN  ?= bin/berth
# What "berth version" and "berth hosts list" show. Without git it is what Go knows.
VERSION ?= $(shell git describe --tags --always --abbrev=12 --dirty=+dirty 2>/dev/null)

.DEFAULT_GOAL := help

.PHONY: help
help: ## List the targets
	@awk -F ':.*## ' '/^[a-z]+:.*## / { printf "  make %-8s %s\n", $$1, $$2 }' $(MAKEFILE_LIST)

.PHONY: build
build: ## Build bin/berth
	$(GO) build -trimpath $(if $(VERSION),-ldflags "-X main.release=$(VERSION)") -o $(BIN) ./cmd/berth

.PHONY: dev
dev: build ## Run berth with an etcd of its own (ARGS="--listen 127.0.0.1:0")
	bin/berth dev $(ARGS)

.PHONY: demo
demo: build ## Run a small pipeline on berth dev with two workers
	examples/wordcount/demo.sh bin/berth

# Tests wait more than they compute, so one package more than there are cores is tested at a time.
# On two busy cores the schedules of package pool take more than half of Go's usual ten minutes.
TESTFLAGS = -timeout 20m -p $(PACKAGES)
PACKAGES  = $(shell expr $$(getconf _NPROCESSORS_ONLN) + 1)

.PHONY: test
test: ## Run all tests
	$(GO) test $(TESTFLAGS) ./...

.PHONY: race
race: ## Run the tests with the race detector, the long ones shortened
	$(GO) test -race -short $(TESTFLAGS) ./...

.PHONY: lint
lint: ## Check the format, and run go vet and staticcheck
	@unformatted="$$(gofmt -l .)"; test -z "$$unformatted" || { echo "make fmt would change:"; echo "$$unformatted"; exit 1; }
	$(GO) vet ./...
	$(GO) tool staticcheck ./...

DURATION ?= 5m
SEED     ?= 0

.PHONY: campaign
campaign: build ## Break all that can break, and judge what berth does (DURATION=8h SEED=7)
	$(GO) build -trimpath -o bin/campaign ./e2e/campaign
	bin/campaign -berth bin/berth -duration $(DURATION) -seed $(SEED) $(ARGS)

.PHONY: bench
bench: build ## Measure claims, the queue or steps against targets (ARGS="steps --embedded --quick")
	$(GO) build -trimpath -o bin/bench ./e2e/bench
	bin/bench $(ARGS)

.PHONY: docs
docs: ## Update the tables of ARCHITECTURE.md and docs
	$(GO) test ./docs -short -update

.PHONY: fmt
fmt: ## Format all Go files
	gofmt -w .
