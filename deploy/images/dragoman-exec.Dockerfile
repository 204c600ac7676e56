# The adapter 'process' as one static program, for agents that are commands and images without Python.
#
#   docker build -f deploy/images/dragoman-exec.Dockerfile -t dragoman-exec:0.1.0 .
#
# BASE has the commands that are to be run; GO_BASE has Go 1.25 or later in /usr/local/go. Each run has a guard of its own,
# which the program starts: it is the first process itself.
ARG BASE=debian:bookworm-slim
ARG GO_BASE=golang:1.26-bookworm

FROM ${GO_BASE} AS build
WORKDIR /src
COPY clients/go clients/go
COPY adapters/go adapters/go
RUN cd adapters/go && CGO_ENABLED=0 GOFLAGS=-mod=readonly /usr/local/go/bin/go build -trimpath -ldflags '-s -w' -o /dragoman-exec ./cmd/dragoman-exec

FROM ${BASE}
COPY --from=build /dragoman-exec /usr/local/bin/dragoman-exec
RUN install -d -o 10001 -g 10001 -m 0700 /home/agent /run/dragoman /workspace
ENV HOME=/home/agent DRAGOMAN_LISTEN=unix:/run/dragoman/adapter.sock
USER 10001:10001
WORKDIR /workspace
ENTRYPOINT ["dragoman-exec"]
