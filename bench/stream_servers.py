"""The servers of streams: agentops, a plain ASGI application and django-eventstream. One process each.

Import it after `workspace.prepare_workspace` has set up Django, because it imports the product.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Callable, Iterator, Mapping
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from uuid import UUID

from bench import payload, peers
from bench.processes import Program, free_port, running, site, uvicorn
from bench.publishing import PublisherProcess, publishing
from bench.workspace import Workspace, redis_url

#: The ID of a run that does not exist, for paths that need none.
NO_RUN = "019a0000-0000-7000-8000-000000000000"
#: Readers per key, the product's default maximum.
READERS_PER_KEY = 20


@dataclass(frozen=True)
class StreamServer:
    """A server of a stream, with its publisher."""

    name: str
    program: Program
    publisher: PublisherProcess
    #: Returns a stream without published events: its path, and its name for the publisher.
    fresh: Callable[[], tuple[str, str]]
    keys: tuple[str, ...] = ()

    @property
    def title(self) -> str:
        return self.publisher.title


@dataclass(frozen=True)
class Site:
    """A module of bench/peers: an ASGI application that is also a publisher when run as a program."""

    name: str
    module: str
    path: str
    python: str


@contextmanager
def agentops_server(workspace: Workspace, readers: int) -> Iterator[StreamServer]:
    from agentops.accounts.access import SYSTEM
    from agentops.accounts.keys import create_key
    from agentops.accounts.models import Project

    environment = os.environ | {"REDIS_URL": redis_url(), "AGENTOPS_PROCESS_NAME": "agentops-bench-stream"}
    # All readers have the same address.
    environment |= {"AGENTOPS_CONNECTIONS_PER_ADDRESS": "100000"}
    project, _ = Project.objects.get_or_create(slug="bench", defaults={"name": "Bench"})
    keys = tuple(
        create_key(project, name=f"reader {number}", scopes=["read"], actor=SYSTEM).plain
        for number in range(-(-readers // READERS_PER_KEY))
    )
    port = free_port()
    server = site(port)
    with ExitStack() as stack:
        program = stack.enter_context(running(server, environment, workspace.folder / "agentops.log", port=port))
        publisher = stack.enter_context(own_publisher(workspace))
        yield StreamServer("agentops", program, publisher, _fresh_stream, keys)


@contextmanager
def own_publisher(workspace: Workspace, *arguments: str) -> Iterator[PublisherProcess]:
    command = [sys.executable, "-m", "bench.own_publisher", *arguments]
    environment = os.environ | {"REDIS_URL": redis_url()}
    with publishing(command, environment, workspace.folder / "agentops-publisher.log") as publisher:
        yield publisher


@contextmanager
def plain(workspace: Workspace) -> Iterator[StreamServer]:
    environment = peers.variables() | {"BENCH_REDIS_URL": redis_url()}
    with _peer(workspace, Site("limit", "plain_asgi", "/", sys.executable), environment) as served:
        yield served


@contextmanager
def eventstream(workspace: Workspace) -> Iterator[StreamServer]:
    """Start django-eventstream, without storage."""
    python = str(peers.installed("eventstream", peers.EVENTSTREAM))
    environment = peers.variables() | {"BENCH_REDIS_URL": redis_url()}
    with _peer(workspace, Site("eventstream", "eventstream_site", "/events/", python), environment) as served:
        yield served


@contextmanager
def _peer(workspace: Workspace, site: Site, environment: Mapping[str, str]) -> Iterator[StreamServer]:
    port = free_port()
    folder = str(peers.SCRIPTS)
    server = uvicorn(site.python, f"{site.module}:application", port, "--app-dir", folder)
    log = workspace.folder / f"{site.name}.log"
    with ExitStack() as stack:
        command = [site.python, f"{folder}/{site.module}.py"]
        publisher = stack.enter_context(publishing(command, environment, log.with_suffix(".publisher")))
        program = stack.enter_context(running(server, environment, log, port=port))
        yield StreamServer(site.name, program, publisher, lambda: (site.path, NO_RUN))


def fresh_run() -> tuple[UUID, int]:
    """Create a queued run that no worker executes, so that its stream stays open. Return its ID and event count."""
    from agentops.accounts.models import Project
    from runs.lifecycle import creation
    from runs.models import Agent

    project, _ = Project.objects.get_or_create(slug="bench", defaults={"name": "Bench"})
    settings = {"provider": "fixture", "model": "claude-code-5c", "tools": ["recorded"]}
    agent, _ = Agent.objects.get_or_create(project=project, slug="streamed", defaults=settings)
    run = creation.create(project, agent, payload.PROMPT, by="bench")
    run.log.refresh_from_db()
    return run.pk, run.log.last_seq


def _fresh_stream() -> tuple[str, str]:
    run_id, after = fresh_run()
    return f"/api/projects/bench/agent-runs/{run_id}/events/stream?afterSeq={after}", str(run_id)
