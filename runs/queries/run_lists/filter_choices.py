"""The choices of menus in the filters of the run list: what a project has."""

from __future__ import annotations

from django.db.models.fields.json import KT

from agentops.accounts.models import Project
from runs.models import Agent, AgentRun, Schedule
from timeline.display import clean

#: Maximum entries of a menu.
MAX_CHOICES = 200
#: Number of newest runs of each source whose recorded agents are choices.
MAX_RECORDED = 100


def agents(project: Project, chosen: str) -> list[tuple[str, str]]:
    """Return the names of agents, with the chosen one even if it was deleted: its runs still exist."""
    slugs = Agent.objects.filter(project=project).order_by("slug").values_list("slug", flat=True)[:MAX_CHOICES]
    return [(name, name) for name in sorted({*slugs, *_recorded_agents(project), *filter(None, [chosen])})]


def schedules(project: Project, chosen: str) -> list[tuple[str, str]]:
    """Return the IDs and names of schedules."""
    found = Schedule.objects.filter(project=project).order_by("name").values_list("pk", "name")[:MAX_CHOICES]
    return [(str(pk), clean(name)) for pk, name in found]


def _recorded_agents(project: Project) -> set[str]:
    """Return the agent names in the newest runs of each external source. One query for each source."""
    # `exclude` is redundant, but the planner needs it to use the partial index `run_list_by_source`.
    runs = AgentRun.objects.filter(project=project).exclude(source=AgentRun.Source.NATIVE)
    names = runs.order_by("-created_at", "-log").values_list(KT("agent_config__agent_id"), flat=True)
    sources = [source for source in AgentRun.Source if source != AgentRun.Source.NATIVE]
    return {clean(name) for source in sources for name in names.filter(source=source)[:MAX_RECORDED] if name}
