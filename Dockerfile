# One image for every process: the command says which (docker-compose.yml lists them).
# It is built of what the lock file names, with hashes, and of two wheels of this tree: the site and its client.
# By digest: `make digests` writes the current one.
ARG PYTHON=python:3.13.15-slim-trixie@sha256:7c61056e61ac89e852de05f3dc6fa51a6dd2181797bceed46aa725dd7cb2cd3b

FROM ${PYTHON} AS build
ENV PIP_DISABLE_PIP_VERSION_CHECK=1 PIP_NO_CACHE_DIR=1 UV_NO_CACHE=1 UV_PYTHON_DOWNLOADS=never UV_LINK_MODE=copy
WORKDIR /src
# The installer is held to its hashes as well, and stays behind in this stage.
COPY requirements.lock requirements-dev.lock ./
RUN sed -n '/^uv==/,/^    # via/p' requirements-dev.lock > uv.txt \
 && pip install --no-deps --require-hashes --requirement uv.txt
# Before the code, so that a change of the code installs nothing again.
RUN uv venv /opt/agentops \
 && uv pip sync --python /opt/agentops --require-hashes requirements.lock
# An extra that is named after its only package, such as `flower`. It and what it needs have their hashes from the lock
# file of developers, whose versions are those of the other one.
ARG EXTRA=
RUN if [ -n "$EXTRA" ]; then \
      sed -n "/^$EXTRA==/,/^    # via/p" requirements-dev.lock > extra.txt && test -s extra.txt \
      && uv pip install --python /opt/agentops --require-hashes --constraint requirements-dev.lock --requirement extra.txt; \
    fi
COPY pyproject.toml README.md CHANGELOG.md LICENSE ./
COPY agentops agentops
COPY runs runs
COPY timeline timeline
COPY static static
COPY templates templates
RUN uv build --wheel --build-constraints requirements-dev.lock --require-hashes --out-dir /wheels \
 && uv build --wheel --build-constraints requirements-dev.lock --require-hashes --out-dir /wheels agentops \
 && uv pip install --python /opt/agentops --no-deps /wheels/*.whl

FROM ${PYTHON}
RUN useradd --system --uid 10001 --create-home --home-dir /var/lib/agentops --shell /usr/sbin/nologin agentops \
 && chmod 0700 /var/lib/agentops
COPY --from=build /opt/agentops /opt/agentops
ENV PATH=/opt/agentops/bin:$PATH PYTHONUNBUFFERED=1 PYTHONDONTWRITEBYTECODE=1 AGENTOPS_HOME=/var/lib/agentops
USER agentops
WORKDIR /var/lib/agentops
STOPSIGNAL SIGTERM
ENTRYPOINT []
CMD ["agentops", "--help"]
