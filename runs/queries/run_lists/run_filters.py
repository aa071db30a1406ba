"""The filters that a request sets: parsed from the URL, written into links, and applied to runs."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from uuid import UUID

from django.db.models import Q
from django.http import QueryDict

from agentops.accounts.models import Project
from agentops.base.refusals import InvalidQuery
from runs.models import Agent, AgentRun
from runs.models.querysets import RunQuerySet
from runs.queries.run_lists import filter_conditions
from runs.queries.run_lists.filter_table import FILTERS, ON_SITE, ListFilter

_BY_NAME = {one.name: one for one in FILTERS}


@dataclass(frozen=True)
class Filters:
    """The filters that are set: parsed values, by the name of the filter."""

    values: Mapping[str, str] = field(default_factory=dict)

    @classmethod
    def parse(cls, query: QueryDict, known: Mapping[str, ListFilter] = ON_SITE) -> Filters:
        """Return the filters of a query string; `known`: by parameter. Raise InvalidQuery for invalid values."""
        values = {}
        for parameter, one in known.items():
            text = ",".join(query.getlist(parameter)) if one.kind.is_many else query.get(parameter, "")
            try:
                values[one.name] = one.kind.parse(text)
            except ValueError as error:
                raise InvalidQuery(f"{parameter} {error}") from None
        return cls({name: value for name, value in values.items() if value})

    def condition(self, project_id: UUID) -> Q:
        """Return the condition of all filters. `shows_text` then checks each run for whether its text is visible."""
        return Q(*(_BY_NAME[name].condition(value, project_id) for name, value in self.values.items()))

    def by_index(self) -> tuple[Filters, Filters]:
        """Return the filters with an index, and the others."""
        having = {name for name in self.values if _BY_NAME[name].has_index}
        return self.only(having), self.only(self.values.keys() - having)

    def narrowed(self, project: Project, among: RunQuerySet | None = None) -> tuple[RunQuerySet, Filters]:
        """Narrow the runs of a project by creation time and by the one filter whose index is used.

        Return them with the remaining filters, which have to be tested run by run. `among`: the queryset to narrow.
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
        """Return those of the filters that have these names."""
        return Filters({name: value for name, value in self.values.items() if name in names})

    def _best_index(self, project: Project) -> tuple[str, Q]:
        """Return the filter whose index is used, with its condition. Without any, an empty name."""
        label, agent = self.values.get("label"), self.values.get("agent")
        if "schedule" not in self.values:
            rare = filter_conditions.rare_runs(label, project.pk) if label else None
            if rare is not None:
                return "label", Q(pk__in=rare)
            if agent and not self._may_be_recorded(project):
                # By ID, for which the planner has statistics.
                found = Agent.objects.filter(project=project, slug=agent).values_list("pk", flat=True).first()
                return "agent", Q(agent=found) if found else Q(pk__in=[])
        name = next((name for name in ("schedule", "status", "source") if name in self.values), "")
        return name, self.only({name}).condition(project.pk)

    def _may_be_recorded(self, project: Project) -> bool:
        """Return whether matching runs may have only the name of an agent, which has no index."""
        if self.values.get("source") == AgentRun.Source.NATIVE:
            return False
        return AgentRun.objects.filter(project=project).exclude(source=AgentRun.Source.NATIVE).exists()
