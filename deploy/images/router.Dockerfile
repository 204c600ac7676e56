# The router, with the adapters that are written in Python. Images of agents are made from it (agent.Dockerfile).
#
#   docker build -f deploy/images/router.Dockerfile -t dragoman:0.1.0 .
#
# BASE has Python 3.11 or later; BUILD_BASE has the same Python at the same place, with its module venv.
# The first process is the guard: it passes signals on, reaps what is left behind, and exits with the code of its child.
ARG BASE=python:3.13-slim-bookworm
ARG BUILD_BASE=${BASE}

FROM ${BUILD_BASE} AS build
WORKDIR /src
ENV PIP_CONSTRAINT=/src/constraints.txt PIP_BUILD_CONSTRAINT=/src/constraints.txt PIP_NO_CACHE_DIR=1
RUN python3 -m venv /opt/dragoman
# First what Dragoman needs, which seldom changes: a layer that a build after a change of the sources finds made.
COPY pyproject.toml constraints.txt ./
RUN python3 -c 'import tomllib; project = tomllib.load(open("pyproject.toml", "rb"))["project"]; extras = project["optional-dependencies"]; print(*project["dependencies"], *extras["postgres"], *extras["jwt"], *extras["telemetry"], sep="\n")' >requirements.txt \
    && /opt/dragoman/bin/pip install --quiet -r requirements.txt
COPY README.md LICENSE ./
COPY proto proto
COPY services services
COPY adapters/python adapters/python
COPY clients/python clients/python
RUN /opt/dragoman/bin/pip install --quiet --no-deps . && /opt/dragoman/bin/pip uninstall --quiet --yes pip setuptools

FROM ${BASE}
COPY --from=build /opt/dragoman /opt/dragoman
# A base without a library that gRPC needs, such as libstdc++, fails here and not in a pod.
RUN /opt/dragoman/bin/python -c 'import dragoman.client'
# A user without a name, as the chart runs it; the directories are private, as Dragoman uses no others.
RUN install -d -o 10001 -g 10001 -m 0700 /home/agent /run/dragoman /workspace
ENV PATH=/opt/dragoman/bin:/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin \
    HOME=/home/agent \
    GRPC_ENABLE_FORK_SUPPORT=0
USER 10001:10001
WORKDIR /workspace
ENTRYPOINT ["python", "-m", "dragoman.guard", "--"]
CMD ["dragoman", "serve"]
