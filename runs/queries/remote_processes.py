"""The processes that have the code of durable functions, elsewhere or as workers, and the runs that none can claim."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from datetime import datetime
from enum import StrEnum
from typing import NamedTuple
from uuid import UUID

from django.conf import settings
from django.db.models import Count, Min, Q, QuerySet

from agentops.accounts.models import Project
from agentops.base.database_clock import Now
from runs.models import Agent, AgentRun, WorkerProcess
from runs.models.workers import process_name
from runs.providers.remote import CODE_VERSION, DURABLE, PACKAGE
from runs.queries import queue_state
from runs.statuses import RunStatus


class Lack(StrEnum):
    """What no living process offers, from the most general to the most specific."""

    AGENT = "agent"
    VERSION = "version"
    QUEUE = "queue"


@dataclass(frozen=True)
class UnservedRun:
    """Why no living process can claim the runs of an agent, a code version and a queue."""

    lack: Lack
    #: The versions of the agent's code that processes have. Empty if none offers the agent.
    versions: Sequence[int] = ()
    #: Whether workers of this site execute the runs, not processes elsewhere.
    is_packaged: bool = False

    def text(self, agent: str, version: int | None, queue: str) -> str:
        """Return a sentence without a period, such as "no process offers the agent nightly"."""
        who = "worker" if self.is_packaged else "process"
        match self.lack:
            case Lack.AGENT:
                return f"no {who} {'has' if self.is_packaged else 'offers'} the agent {agent}"
            case Lack.VERSION:
                return f"no {who} has code version {version} of {agent}"
            case Lack.QUEUE:
                return f"no {who} with code version {version} of {agent} serves the queue {queue}"


@dataclass(frozen=True)
class ShownProcess:
    """A living process for a table."""

    #: The name that the process gave itself.
    name: str
    project: str
    #: The agents that it offers with their versions, such as "nightly 1, 2; report 3".
    agents: str
    queues: str
    #: Number of runs that it holds.
    runs: int
    #: Maximum number of runs.
    concurrency: int
    started_at: datetime
    seen_at: datetime


class Offers:
    """The offers of the living processes elsewhere of a project, or the living workers of this site. One query."""

    def __init__(self, project: Project, *, is_packaged: bool = False) -> None:
        """Read the offers. `is_packaged`: of the workers, which have the code of installed packages."""
        self._is_packaged = is_packaged
        if not is_packaged:
            processes = WorkerProcess.objects.remote().filter(project=project)
        elif is_project_of_packages(project):
            processes = WorkerProcess.objects.of_site()
        else:
            processes = WorkerProcess.objects.none()
        rows = processes.values_list("agents", "queues")
        self._offers: list[tuple[dict[str, list[int]], list[str]]] = [(agents or {}, queues) for agents, queues in rows]

    def lack(self, agent: str, version: int | None, queue: str) -> UnservedRun | None:
        """Return why no process can claim a run of this agent, code version and queue; None if one can."""
        offers = [(agents[agent], queues) for agents, queues in self._offers if agent in agents]
        if not offers:
            return UnservedRun(Lack.AGENT, is_packaged=self._is_packaged)
        versions = sorted({each for own, _ in offers for each in own})
        if version not in versions:
            return UnservedRun(Lack.VERSION, versions, self._is_packaged)
        is_served = any(version in own and queue in queues for own, queues in offers)
        return None if is_served else UnservedRun(Lack.QUEUE, versions, self._is_packaged)


def is_project_of_packages(project: Project) -> bool:
    """Whether a project has the agents of installed packages."""
    names = settings.AGENTOPS_AGENT_PROJECTS
    return not names or project.slug in names


def unserved_agents(project: Project, agents: Iterable[Agent]) -> dict[UUID, str]:
    """Return the agents whose new runs no living worker or process can claim: their IDs, each with why.

    At most three queries.
    """
    durable = [agent for agent in agents if agent.provider in DURABLE]
    others = [agent for agent in agents if agent.provider not in DURABLE]
    queues = queue_state.unserved(agent.queue for agent in others) if others else ()
    texts = {agent.pk: f"no worker serves the queue {agent.queue}" for agent in others if agent.queue in queues}
    offers: dict[str, Offers] = {}
    for agent in durable:
        if agent.provider not in offers:
            offers[agent.provider] = Offers(project, is_packaged=agent.provider == PACKAGE)
        version = int(agent.settings.get(CODE_VERSION, 1))
        lack = offers[agent.provider].lack(agent.slug, version, agent.queue)
        if lack is not None:
            texts[agent.pk] = lack.text(agent.slug, version, agent.queue)
    return texts


def living(project: Project | None = None, *, agent: str = "", at_most: int) -> list[ShownProcess]:
    """Return the living processes elsewhere by project and name: of all projects, or of one, with an agent if named.

    Two queries.
    """
    rows = WorkerProcess.objects.remote().select_related("project").order_by("project__slug", "name")
    rows = rows if project is None else rows.filter(project=project)
    return _shown(rows.filter(agents__has_key=agent) if agent else rows, at_most)


def workers_with(project: Project, agent: str, *, at_most: int) -> list[ShownProcess]:
    """Return the living workers of this site that have the code of an agent of a package, by name. Two queries."""
    if not is_project_of_packages(project):
        return []
    rows = WorkerProcess.objects.of_site().filter(agents__has_key=agent)
    return _shown(rows.select_related("project").order_by("name"), at_most)


def _shown(rows: QuerySet[WorkerProcess], at_most: int) -> list[ShownProcess]:
    processes = list(rows[:at_most])
    held = _held_by([process.name for process in processes])
    return [
        ShownProcess(
            name=process_name(each.name),
            project=each.project.slug if each.project is not None else "",
            agents=offer_text(each),
            queues=", ".join(each.queues),
            runs=held[each.name],
            concurrency=each.concurrency,
            started_at=each.started_at,
            seen_at=each.seen_at,
        )
        for each in processes
    ]


class ProjectLoad(NamedTuple):
    """The number of living processes of a project, and of its remote runs with a valid lease, and in the queue."""

    processes: int
    running: int
    queued: int


def load_of(project: Project) -> ProjectLoad:
    """Return the processes and the remote runs of a project. Two queries."""
    runs = AgentRun.objects.remote().filter(project=project, status__in=(RunStatus.RUNNING, RunStatus.QUEUED))
    is_held = Q(status=RunStatus.RUNNING, lease_expires_at__gte=Now())
    counts = runs.aggregate(held=Count("pk", filter=is_held), queued=Count("pk", filter=Q(status=RunStatus.QUEUED)))
    processes = WorkerProcess.objects.remote().filter(project=project).count()
    return ProjectLoad(processes, counts["held"], counts["queued"])


def offer_text(process: WorkerProcess) -> str:
    """Return the agents that a process offers with the versions of their code."""
    offers = sorted((process.agents or {}).items())
    return "; ".join(f"{agent} {', '.join(map(str, sorted(versions)))}" for agent, versions in offers)


def oldest_queued() -> datetime | None:
    """Return since when the oldest queued remote run waits for a process; None without one."""
    queued = AgentRun.objects.remote().filter(status=RunStatus.QUEUED)
    oldest: datetime | None = queued.aggregate(oldest=Min("queued_at"))["oldest"]
    return oldest


def _held_by(owners: Sequence[str]) -> Counter[str]:
    """Return the number of runs that each of these processes holds with a valid lease."""
    running = AgentRun.objects.running()
    rows = running.filter(lease_owner__in=owners, lease_expires_at__gte=Now()).order_by()
    return Counter(dict(rows.values_list("lease_owner").annotate(number=Count("pk"))))
