# An adapter and its agent, at the version that scripts/install-agents pins: the router's image, and the agent's program.
#
#   docker build -f deploy/images/agent.Dockerfile --build-arg AGENT=claude --build-arg ADAPTER=claude_code \
#     -t dragoman-claude-code:0.1.0 .
#   docker run --rm --read-only --tmpfs /tmp -v dragoman-sockets:/run/dragoman -v "$PWD:/workspace" dragoman-claude-code:0.1.0
#
# The adapter listens on a Unix socket in a volume that the router's container mounts too: what has no TLS stays on one
# machine. Run both as the same user, or the socket cannot be opened.
# AGENT is a name that 'scripts/install-agents --list' shows; BUILD_BASE has Python 3 and npm; ROUTER is the image of
# router.Dockerfile. Tools that your agents are to find, such as git, belong into the BASE of that one.
ARG ROUTER=dragoman:0.1.0
ARG BUILD_BASE=node:24-bookworm

FROM ${BUILD_BASE} AS agent
ARG AGENT
COPY scripts/install-agents /opt/build/scripts/install-agents
# An npm older than 10.4 installs programs for musl, too, which are as large as those that are used.
RUN python3 /opt/build/scripts/install-agents "${AGENT:?is needed: --build-arg AGENT=...}" \
    && find /opt/build/.agents -type d -name '*-linux-*-musl' -prune -exec rm -rf {} +

FROM ${ROUTER}
ARG ADAPTER
COPY --from=agent /opt/build/.agents /opt/agents
ENV PATH=/opt/agents/bin:/opt/dragoman/bin:/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin \
    DRAGOMAN_ADAPTER=${ADAPTER} \
    DRAGOMAN_LISTEN=unix:/run/dragoman/adapter.sock
CMD ["sh", "-c", "exec dragoman adapter serve \"$DRAGOMAN_ADAPTER\" --listen \"$DRAGOMAN_LISTEN\""]
