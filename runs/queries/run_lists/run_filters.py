"""The table of the run list's filters with the choices of their menus, and the filters that a request sets: parsed from
the URL, written into links, and applied to runs.

The form of the list, saved views, exports, the API with its description, and the command line follow from the table.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from datetime import UTC, datetime
from decimal import Decimal
from typing import Any
from uuid import UUID

from django.db.models import Q
from django.db.models.fields.json import KT
from django.db.models.lookups import GreaterThanOrEqual, LessThanOrEqual
from django.http import QueryDict

from agentops.accounts.models import Project
from agentops.base.refusals import InvalidQuery
from runs.models import Agent, AgentRun, Schedule
from runs.models.querysets import RunQuerySet
from runs.models.run import REMOTE
from runs.queries.run_lists import filter_conditions as conditions
from runs.queries.run_lists import filter_values as values
from runs.queries.run_lists.filter_conditions import Condition, compare
from runs.queries.run_lists.filter_values import ValueKind
from timeline.display import clean

#: Maximum entries of a menu.
MAX_CHOICES = 200
#: Number of newest runs of each source whose recorded agents are choices.
MAX_RECORDED = 100


def agent_choices(project: Project, chosen: str) -> list[tuple[str, str]]:
    """Return the names of agents, also of the chosen one if it was deleted, because its runs still exist."""
    slugs = Agent.objects.filter(project=project).order_by("slug").values_list("slug", flat=True)[:MAX_CHOICES]
    return [(name, name) for name in sorted({*slugs, *_recorded_agents(project), *filter(None, [chosen])})]


def schedule_choices(project: Project, chosen: str) -> list[tuple[str, str]]:
    """Return the IDs and names of schedules."""
    schedules = Schedule.objects.filter(project=project).order_by("name").values_list("pk", "name")[:MAX_CHOICES]
    return [(str(pk), clean(name)) for pk, name in schedules]


def _recorded_agents(project: Project) -> set[str]:
    """Return the agent names in the newest runs of each external source. One query for each source."""
    # Without the redundant `exclude`, the planner would not use the partial index `run_list_by_source`.
    runs = AgentRun.objects.filter(project=project).exclude(source=AgentRun.Source.NATIVE)
    names = runs.order_by("-created_at", "-log").values_list(KT("agent_config__agent_id"), flat=True)
    sources = [source for source in AgentRun.Source if source != AgentRun.Source.NATIVE]
    return {clean(name) for source in sources for name in names.filter(source=source)[:MAX_RECORDED] if name}


#: Returns the choices of a form's menu in a project, as values and texts, with the chosen value.
Choices = Callable[[Project, str], list[tuple[str, str]]]


@dataclass(frozen=True)
class ListFilter:
    """A filter of the run list."""

    #: The parameter of the page and of exports, and with dashes the option of the command line.
    name: str
    kind: ValueKind
    #: One sentence, for the API and the command line.
    help: str
    condition: Condition
    #: The label in the form. Empty if only the API's list has the filter.
    label: str = ""
    #: The parameter of the API's list: None if it is `name`, empty if the list does not have the filter.
    api_name: str | None = None
    example: Any = None
    #: Whether an index finds the runs. Filters without an index are tested only on the next runs (see run_windows).
    has_index: bool = False
    #: Returns the choices of the menu in the form. None if the filter has no menu of a project's data.
    choices: Choices | None = None
    #: Whether it is in the form's section "More filters".
    is_more: bool = False
    #: A longer explanation in the form.
    hint: str = ""


def _moment(text: str) -> datetime:
    return datetime.fromisoformat(text).replace(tzinfo=UTC)


#: In the order of the form.
FILTERS = (
    ListFilter(
        "status",
        values.STATUSES,
        "Filter by status.",
        compare("status__in", lambda value: value.split(",")),
        label="Status",
        example=["paused", "failed"],
        has_index=True,
    ),
    ListFilter(
        "agent",
        values.NAME,
        "Filter by agent name.",
        conditions.of_agent,
        label="Agent",
        api_name="agent_id",
        example="reviewer",
        has_index=True,
        choices=agent_choices,
    ),
    ListFilter("source", values.SOURCE, "Filter by source.", conditions.from_source, label="Source", has_index=True),
    ListFilter(
        "schedule",
        values.ID,
        "Filter by the schedule that started the run.",
        compare("schedule", UUID),
        label="Schedule",
        api_name="schedule_id",
        has_index=True,
        choices=schedule_choices,
    ),
    # The API's list has another parameter `q`, which searches messages too.
    ListFilter(
        "q",
        values.SEARCH,
        "Filter by a text in the title or the first prompt, or by run ID.",
        conditions.with_text,
        label="Title, prompt or ID",
        api_name="",
    ),
    ListFilter(
        "root",
        values.FLAG,
        "Without child runs and runs that continue another run.",
        conditions.is_root,
        label="Root runs only",
        hint="Hide child runs and runs that continue another run",
    ),
    ListFilter(
        "label",
        values.NAME,
        "Filter by label, exact match.",
        conditions.with_label,
        label="Label",
        example="nightly",
        has_index=True,
    ),
    ListFilter(
        "created_after",
        values.TIME,
        "Runs created at this time or later.",
        compare("created_at__gte", _moment),
        label="From (UTC)",
        example="2026-11-20T00:00:00Z",
        has_index=True,
        is_more=True,
    ),
    ListFilter(
        "created_before",
        values.TIME,
        "Runs created before this time.",
        compare("created_at__lt", _moment),
        label="Until (UTC)",
        example="2026-11-21T00:00:00Z",
        has_index=True,
        is_more=True,
    ),
    ListFilter(
        "cost_min",
        values.DOLLARS,
        "Least cost in US dollars.",
        compare("cost_usd__gte", Decimal),
        label="Cost from ($)",
        example="0.25",
        is_more=True,
    ),
    ListFilter(
        "cost_max",
        values.DOLLARS,
        "Highest cost in US dollars.",
        compare("cost_usd__lte", Decimal),
        label="Cost to ($)",
        is_more=True,
    ),
    ListFilter(
        "duration_min",
        values.SECONDS,
        "Least duration in whole seconds.",
        conditions.compare_duration(GreaterThanOrEqual),
        label="Duration from (s)",
        example="60",
        is_more=True,
    ),
    ListFilter(
        "duration_max",
        values.SECONDS,
        "Highest duration in whole seconds.",
        conditions.compare_duration(LessThanOrEqual),
        label="Duration to (s)",
        is_more=True,
    ),
    ListFilter(
        "reason",
        values.LINE,
        "Filter by status reason or error type; case of A to Z is ignored.",
        conditions.with_reason,
        label="Reason or error type",
        example="rate_limited",
        is_more=True,
    ),
    ListFilter("parent_run_id", values.ID, "Filter by parent run.", compare("parent_run", UUID), has_index=True),
    ListFilter(
        "root_run_id",
        values.ID,
        "Filter by lineage: the run with this ID and all runs that continue it.",
        compare("root_run", UUID),
        has_index=True,
    ),
    ListFilter(
        "forked_from", values.ID, "Filter by the run that was forked.", compare("forked_from", UUID), has_index=True
    ),
)
#: The filters of the page, of exports and of the command line, by parameter.
ON_SITE = {one.name: one for one in FILTERS if one.label}
#: The filters of the API's list, by parameter.
IN_API = {one.name if one.api_name is None else one.api_name: one for one in FILTERS if one.api_name != ""}
_BY_NAME = {one.name: one for one in FILTERS}


@dataclass(frozen=True)
class Filters:
    """The filters that are set: parsed values, by the name of the filter."""

    values: Mapping[str, str] = field(default_factory=dict)

    @classmethod
    def parse(cls, query: QueryDict, known: Mapping[str, ListFilter] = ON_SITE) -> Filters:
        """Return the filters of a query string. `known`: the filters by parameter. Raises `InvalidQuery`."""
        values = {}
        for parameter, one in known.items():
            text = ",".join(query.getlist(parameter)) if one.kind.is_many else query.get(parameter, "")
            try:
                values[one.name] = one.kind.parse(text)
            except ValueError as error:
                raise InvalidQuery(f"{parameter} {error}") from None
        return cls({name: value for name, value in values.items() if value})

    def condition(self, project_id: UUID) -> Q:
        """Return the condition of all filters. With a text filter, `shows_text` must check each run that matches."""
        return Q(*(_BY_NAME[name].condition(value, project_id) for name, value in self.values.items()))

    def by_index(self) -> tuple[Filters, Filters]:
        """Return the filters with an index, and the others."""
        indexed = {name for name in self.values if _BY_NAME[name].has_index}
        return self.only(indexed), self.only(self.values.keys() - indexed)

    def narrowed(self, project: Project, among: RunQuerySet | None = None) -> tuple[RunQuerySet, Filters]:
        """Return the runs of a project that meet the filters with an index, and the other filters, to test run by run.

        Those with an index are the creation time and the one filter of `_best_index`. `among`: the queryset to filter.
        """
        names = {"created_after", "created_before"}
        name, condition = self._best_index(project)
        runs = (AgentRun.objects.all() if among is None else among).filter(project=project)
        runs = runs.filter(self.only(names).condition(project.pk), condition)
        return runs, self.only(self.values.keys() - names - {name})

    def pairs(self) -> list[tuple[str, str]]:
        """Return the filters as query parameters of the page."""
        return [
            (name, each)
            for name, value in self.values.items()
            for each in (value.split(",") if _BY_NAME[name].kind.is_many else [value])
        ]

    @property
    def text(self) -> str:
        """The text to search for."""
        return self.values.get("q", "")

    def __bool__(self) -> bool:
        return bool(self.values)

    def only(self, names: set[str]) -> Filters:
        """Return the filters with these names."""
        return Filters({name: value for name, value in self.values.items() if name in names})

    def _best_index(self, project: Project) -> tuple[str, Q]:
        """Return the name and the condition of the filter by whose index runs are found; an empty name without one."""
        label, agent = self.values.get("label"), self.values.get("agent")
        if "schedule" not in self.values:
            rare = conditions.rare_runs(label, project.pk) if label else None
            if rare is not None:
                return "label", Q(pk__in=rare)
            if agent and not self._may_be_recorded(project):
                # By ID, for which the planner has statistics.
                agent_id = Agent.objects.filter(project=project, slug=agent).values_list("pk", flat=True).first()
                return "agent", Q(agent=agent_id) if agent_id else Q(pk__in=[])
        name = next((name for name in ("schedule", "status", "source") if name in self.values), "")
        return name, self.only({name}).condition(project.pk)

    def _may_be_recorded(self, project: Project) -> bool:
        """Return whether runs may have only the name of an agent, as runs of other programs do. It has no index."""
        if self.values.get("source") in (AgentRun.Source.NATIVE, REMOTE):
            return False
        return AgentRun.objects.filter(project=project).exclude(source=AgentRun.Source.NATIVE).exists()
