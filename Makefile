# `make` lists what can be made.

GO   ?= go
ARGS ?=
BIN  ?= bin/berth
# What "berth version" and "berth hosts list" show. Without git it is what Go knows.
VERSION ?= $(shell git describe --tags --always --abbrev=12 --dirty=+dirty 2>/dev/null)

.DEFAULT_GOAL := help

.PHONY: help
help: ## List the targets
	@awk -F ':.*## ' '/^[a-z-]+:.*## / { printf "  make %-13s %s\n", $$1, $$2 }' $(MAKEFILE_LIST)

# What is built, tested and checked shares what is compiled: without C libraries and without paths of
# this machine, as releases are. So what the tests run is what is released.
override export GOFLAGS := $(strip $(filter-out -trimpath,$(or $(GOFLAGS),$(shell $(GO) env GOFLAGS))) -trimpath)
export CGO_ENABLED := $(or $(strip $(CGO_ENABLED)),0)

# What the linker gets. Image builds add LDFLAGS to leave out what only debuggers need.
LINKED = $(strip $(LDFLAGS) $(if $(VERSION),-X main.release=$(VERSION)))

.PHONY: build
build: ## Build bin/berth
	$(GO) build $(if $(LINKED),-ldflags "$(LINKED)") -o $(BIN) ./cmd/berth

IMAGE ?= berth:dev

# The context is a folder with the binary alone, so that an image needs no other image and no network.
.PHONY: image
image: ## Build the container image IMAGE (berth:dev) with docker
	umask 022 && context=$$(mktemp -d) && trap 'rm -rf "$$context"' EXIT && mkdir "$$context/var" "$$context/run" && \
	$(MAKE) build CGO_ENABLED=0 LDFLAGS="-s -w" BIN="$$context/berth" && docker build -q -t $(IMAGE) -f Dockerfile "$$context"

.PHONY: release
release: ## Build archives and packages of the last commit for all architectures into dist
	@test -z "$$(git status --porcelain)" || { echo "make release builds a commit: commit your changes first" >&2; exit 1; }
	packaging/release.sh "$(VERSION)" "$$(git log -1 --format=%ct)" dist amd64 arm64

.PHONY: release-check
release-check: ## Build the release of the last commit in two folders, and compare
	dir=$$(mktemp -d) && trap 'rm -rf "$$dir"' EXIT && \
	for copy in one another/folder; do \
	  git clone -q . "$$dir/$$copy" && $(MAKE) -C "$$dir/$$copy" release || exit 1; \
	done && \
	diff -r "$$dir/one/dist" "$$dir/another/folder/dist" && echo "The releases are the same." && cat "$$dir/one/dist/SHA256SUMS"

.PHONY: dev
dev: build ## Run berth with an etcd of its own (ARGS="--listen 127.0.0.1:0")
	bin/berth dev $(ARGS)

.PHONY: demo
demo: build ## Run a small pipeline on berth dev with two workers
	examples/wordcount/demo.sh bin/berth

# Tests wait more than they compute, so two packages more than there are cores are tested at a time.
# On two busy cores the schedules of package pool take more than half of Go's usual ten minutes.
# `make lint` vets.
TESTFLAGS = -timeout 20m -p $(PACKAGES) -vet=off
PACKAGES  = $(shell expr $$(getconf _NPROCESSORS_ONLN) + 2)

.PHONY: test
test: ## Run all tests
	$(GO) test $(TESTFLAGS) ./...
	cd deploy/kubernetes/check && $(GO) test ./...

.PHONY: race
race: ## Run the tests with the race detector, the long ones shortened
	CGO_ENABLED=1 $(GO) test -race -short $(TESTFLAGS) ./...

.PHONY: lint
lint: ## Check the format, and run go vet and staticcheck
	@unformatted="$$(gofmt -l .)"; test -z "$$unformatted" || { echo "make fmt would change:"; echo "$$unformatted"; exit 1; }
	$(GO) vet ./...
	$(GO) tool staticcheck ./...

# Where Docker cannot run, the test says why it is skipped.
.PHONY: compose-test
compose-test: ## Run the servers of deploy/compose in Docker, and cut one off
	BERTH_COMPOSE_TEST=1 $(GO) test ./deploy -count=1 -v -run TestTheComposeFileSurvives

DURATION ?= 5m
SEED     ?= 0

.PHONY: campaign
campaign: build ## Break all that can break, and judge what berth does (DURATION=8h SEED=7)
	$(GO) build -o bin/campaign ./e2e/campaign
	bin/campaign -berth bin/berth -duration $(DURATION) -seed $(SEED) $(ARGS)

.PHONY: bench
bench: build ## Measure claims, hosts, the queue or steps (ARGS="steps --embedded --quick")
	$(GO) build -o bin/bench ./e2e/bench
	bin/bench $(ARGS)

.PHONY: docs
docs: ## Update the tables of ARCHITECTURE.md and docs, and the OpenAPI document
	$(GO) test ./docs -short -update
	BERTH_UPDATE=1 $(GO) test ./sidecar -count=1 -run TestTheCommittedDocumentIsCurrent

.PHONY: fmt
fmt: ## Format all Go files
	gofmt -w .
