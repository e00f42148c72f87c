# Everything that a person or a machine does with this tree. `make` alone lists the targets.
#
# Tools are installed under bin/tools, each at the version named here; nothing outside bin/ is touched.

SHELL := bash
.SHELLFLAGS := -euo pipefail -c
.DEFAULT_GOAL := help
.DELETE_ON_ERROR:

TOOLS := $(CURDIR)/bin/tools
BUF := $(TOOLS)/npm/node_modules/.bin/buf
KAFKA_LIBS := $(CURDIR)/bin/kafka-libs

# A stamp names the version, so that a new version here installs it.
BUF_STAMP := $(TOOLS)/.buf-1.75.0
PROTOC_GEN_GO := $(TOOLS)/.protoc-gen-go-v1.36.12
PROTOC_GEN_GO_GRPC := $(TOOLS)/.protoc-gen-go-grpc-v1.6.2
GOTESTSUM := $(TOOLS)/.gotestsum-v1.13.0
GOLANGCI := $(TOOLS)/.golangci-lint-v2.15.0

VERSION := $(shell git describe --tags --match 'v*' 2>/dev/null || echo v0.1.0-dev)
COMMIT := $(shell git rev-parse --short=12 HEAD 2>/dev/null || echo unknown)
BUILD_DATE := $(shell date -u +%Y-%m-%dT%H:%M:%SZ)
APP := github.com/fencepost-io/fencepost/cmd/internal/app
LDFLAGS := -X $(APP).Version=$(VERSION) -X $(APP).Commit=$(COMMIT) -X $(APP).BuildDate=$(BUILD_DATE)

# What a binary is made of. The log of HEAD makes a new commit show in `fencepost version`.
GO_FILES := $(shell find cmd coordinator runner sdk plugins proto -name '*.go' -not -name '*_test.go' 2>/dev/null) go.mod go.sum Makefile $(wildcard .git/logs/HEAD)

.PHONY: help run test test-all test-short build generate generated lint fmt bench kafka soak

help: ## list the targets
	@grep -hE '^[a-z-]+:.*## ' $(MAKEFILE_LIST) | sed -E 's/^([a-z-]+):.*## (.*)/\1\t\2/' | expand -t 14

run: build ## the quick start; ONCE=1 ends when all of it has been delivered
	@bin/fencepost dev -f docs/examples/quickstart.yaml --plugin-path bin/plugins $(if $(ONCE),--once)

test: lint generated $(GOTESTSUM) $(KAFKA_LIBS) ## lint, generated code, race tests, a real broker, real processes
	FENCEPOST_KAFKA_LIBS=$(KAFKA_LIBS) $(TOOLS)/gotestsum --format pkgname --format-hide-empty-pkg --jsonfile bin/test.json --raw-command -- bash .ci/gotest

test-all: ## every count in full, and half an hour of faults twice: hours
	FENCEPOST_FULL=1 $(MAKE) test
	$(MAKE) soak MINUTES=30
	$(MAKE) soak MINUTES=30

test-short: ## the inner loop: everything that needs one process only
	go test -race -short $$(go list ./... | grep -v /integration)

build: bin/fencepost bin/plugins/file bin/plugins/generator ## bin/fencepost and bin/plugins/*

bin/fencepost: $(GO_FILES)
	go build -ldflags '$(LDFLAGS)' -o $@ ./cmd/fencepost

bin/plugins/%: $(GO_FILES)
	CGO_ENABLED=0 go build -o $@ ./plugins/$*

generate: $(BUF_STAMP) $(PROTOC_GEN_GO) $(PROTOC_GEN_GO_GRPC) ## Go code of the protos
	$(BUF) generate

generated: $(BUF_STAMP) $(PROTOC_GEN_GO) $(PROTOC_GEN_GO_GRPC)
	@rm -rf bin/_generated
	$(BUF) generate -o bin/_generated
	@diff -r bin/_generated/proto/gen/go proto/gen/go || { echo 'generated code is not current: run make generate' >&2; exit 1; }

lint: $(BUF_STAMP) $(GOLANGCI) ## protos and Go
	$(BUF) lint
	$(TOOLS)/golangci-lint run

fmt: $(BUF_STAMP) $(GOLANGCI) ## format protos and Go
	$(BUF) format -w
	$(TOOLS)/golangci-lint fmt

bench: build $(KAFKA_LIBS) ## the figures, into bin/bench/results.json
	FENCEPOST_KAFKA_LIBS=$(KAFKA_LIBS) go run ./integration/cmd/bench

soak: build $(KAFKA_LIBS) ## faults at random for MINUTES (3) from SEED, the verdict last; SCHEDULE=file repeats, SHRINK=1 shortens
	FENCEPOST_KAFKA_LIBS=$(KAFKA_LIBS) go run ./integration/cmd/soak -minutes $(or $(MINUTES),3) -seed $(or $(SEED),0) $(if $(SCHEDULE),-schedule $(SCHEDULE)) $(if $(SHRINK),-shrink) $(if $(KINDS),-kinds $(KINDS))

kafka: $(KAFKA_LIBS) ## one Apache Kafka broker in the foreground on KAFKA_PORT, with TOPICS="a b"
	FENCEPOST_KAFKA_LIBS=$(KAFKA_LIBS) go run ./integration/cmd/kafka -port $(or $(KAFKA_PORT),9092) -data bin/kafka-data -topics "$(TOPICS)"

$(KAFKA_LIBS): integration/kafka/pom.xml
	go run ./integration/cmd/kafka -fetch $@
	@touch $@

$(BUF_STAMP):
	npm install --silent --no-audit --no-fund --prefix $(TOOLS)/npm @bufbuild/buf@1.75.0
	@touch $@

$(PROTOC_GEN_GO):
	GOBIN=$(TOOLS) go install google.golang.org/protobuf/cmd/protoc-gen-go@v1.36.12
	@touch $@

$(PROTOC_GEN_GO_GRPC):
	GOBIN=$(TOOLS) go install google.golang.org/grpc/cmd/protoc-gen-go-grpc@v1.6.2
	@touch $@

$(GOTESTSUM):
	GOBIN=$(TOOLS) go install gotest.tools/gotestsum@v1.13.0
	@touch $@

# About five minutes of CPU, once per machine.
$(GOLANGCI):
	GOBIN=$(TOOLS) go install github.com/golangci/golangci-lint/v2/cmd/golangci-lint@v2.15.0
	@touch $@
