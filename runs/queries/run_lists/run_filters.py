"""The filters of the run list, parsed from the URL and written into links."""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from decimal import Decimal
from typing import Any, TypeVar
from uuid import UUID

from django.db import connection
from django.db.models import BooleanField, F, Func, Q, TextField
from django.db.models.functions import Left
from django.http import QueryDict

from agentops.accounts.models import Project
from agentops.accounts.names import UUID_PATTERN
from agentops.base.refusals import InvalidQuery
from runs.models import Agent, AgentRun
from runs.models.querysets import RunQuerySet
from runs.queries.run_lists import filter_values
from runs.queries.run_lists.run_order import duration_us
from runs.statuses import RunStatus
from timeline.display import LOOKAHEAD, clean, make_legible

T = TypeVar("T")
V = TypeVar("V")
#: Maximum characters of a prompt that a text filter reads.
MAX_PROMPT = 20_000
#: A label that at most this many runs of the site have is looked up by its index.
RARE = 2_000


class _PromptText(Func):
    """The prompt itself if it is a text; its JSON if it has media."""

    output_field = TextField()
    template = "JSON_EXTRACT(%(expressions)s, '$')"

    def as_postgresql(self, compiler: Any, connection: Any, **extra: Any) -> Any:
        return self.as_sql(compiler, connection, template="(%(expressions)s #>> '{}')", **extra)


class _HasLabel(Func):
    """Whether a run has a label."""

    output_field = BooleanField()
    template = "EXISTS (SELECT 1 FROM JSON_EACH(%(expressions)s) AS one WHERE one.value = %%s)"

    def __init__(self, label: str) -> None:
        super().__init__(F("labels"))
        self.label = label

    def as_sqlite(self, compiler: Any, connection: Any, **extra: Any) -> Any:
        sql, params = super().as_sql(compiler, connection, **extra)
        return sql, (*params, self.label)


@dataclass(frozen=True)
class Filters:
    """The filters of the list. Empty ones do not filter."""

    statuses: tuple[RunStatus, ...] = ()
    #: For external runs, the name that their runner gave.
    agent: str = ""
    #: Matches the title, the first prompt, or the ID of a run.
    text: str = ""
    source: str = ""
    root_only: bool = False
    label: str = ""
    #: The ID of the schedule that started the run.
    schedule: str = ""
    #: A reason of a status, or the type of an error.
    reason: str = ""
    #: Creation times in UTC, as a form sends them.
    created_after: str = ""
    created_before: str = ""
    #: US dollars.
    cost_min: str = ""
    cost_max: str = ""
    #: Seconds.
    duration_min: str = ""
    duration_max: str = ""

    @classmethod
    def parse(cls, query: QueryDict) -> Filters:
        """Return the filters of a query string. Raise InvalidQuery for invalid values."""
        return cls(
            _checked("status", filter_values.statuses, query.getlist("status")),
            _parsed(query, "agent", filter_values.agent),
            _parsed(query, "q", filter_values.line),
            _parsed(query, "source", filter_values.source),
            bool(query.get("root")),
            label=_parsed(query, "label", filter_values.label),
            schedule=_parsed(query, "schedule", filter_values.schedule),
            reason=_parsed(query, "reason", filter_values.line),
            created_after=_parsed(query, "created_after", filter_values.local_time),
            created_before=_parsed(query, "created_before", filter_values.local_time),
            cost_min=_parsed(query, "cost_min", filter_values.cost),
            cost_max=_parsed(query, "cost_max", filter_values.cost),
            duration_min=_parsed(query, "duration_min", filter_values.seconds),
            duration_max=_parsed(query, "duration_max", filter_values.seconds),
        )

    def apply(self, runs: RunQuerySet) -> RunQuerySet:
        """Return the matching runs. `matches` then checks each run for whether its text is visible."""
        runs = self._in_range(runs)
        if self.statuses:
            runs = runs.filter(status__in=self.statuses)
        if self.agent:
            runs = runs.filter(Q(agent__slug=self.agent) | Q(agent=None, agent_config__agent_id=self.agent))
        if self.source:
            runs = runs.filter(source=self.source)
        if self.root_only:
            runs = runs.filter(parent_run=None, root_run=F("pk"))
        if self.label:
            runs = runs.filter(_with_label(self.label))
        if self.schedule:
            runs = runs.filter(schedule=UUID(self.schedule))
        if self.reason:
            runs = runs.filter(Q(status_reason__iexact=self.reason) | Q(error_type__iexact=self.reason))
        if self.text:
            runs = self._with_text(runs)
        return self._within_limits(runs)

    def indexed(self, project: Project, among: RunQuerySet | None = None) -> tuple[RunQuerySet, Filters]:
        """Narrow the runs of a project by creation time and by the one filter whose index is used.

        Return them with the remaining filters, which have to be tested run by run. `among`: the queryset to narrow.
        """
        runs = self._in_range((AgentRun.objects.all() if among is None else among).filter(project=project))
        rest = replace(self, created_after="", created_before="")
        if self.schedule:
            return runs.filter(schedule=UUID(self.schedule)), replace(rest, schedule="")
        rare = _rare_runs(self.label) if self.label else None
        if rare is not None:
            return runs.filter(pk__in=rare), replace(rest, label="")
        if self.agent and (self.source == AgentRun.Source.NATIVE or not _has_external_runs(project)):
            # By ID, for which the planner has statistics.
            agent = Agent.objects.filter(project=project, slug=self.agent).values_list("pk", flat=True).first()
            return (runs.none() if agent is None else runs.filter(agent=agent)), replace(rest, agent="")
        if self.statuses:
            return runs.filter(status__in=self.statuses), replace(rest, statuses=())
        if self.source:
            return runs.filter(source=self.source), replace(rest, source="")
        return runs, rest

    def matches(self, title: str, prompt: str) -> bool:
        """Return whether the text is in the redacted title, or in the start of the redacted prompt.

        Stored texts may contain secrets, which must not be searchable. `prompt`: in the form of `prompt_to_mask`.
        """
        return not self.text or _is_id(self.text) or _shows(title, self.text) or _shows(prompt, self.text)

    def pairs(self) -> list[tuple[str, str]]:
        """Return the filters as query parameters."""
        single = [("agent", self.agent), ("q", self.text), ("source", self.source), ("root", "1" * self.root_only)]
        single += [
            (name, getattr(self, name)) for name in ("label", "schedule", "reason", "created_after", "created_before")
        ]
        single += [(name, getattr(self, name)) for name in ("cost_min", "cost_max", "duration_min", "duration_max")]
        return [*(("status", status.value) for status in self.statuses), *(pair for pair in single if pair[1])]

    @property
    def has_more(self) -> bool:
        """Return whether a filter in the form's section "More filters" is set."""
        limits = (self.cost_min, self.cost_max, self.duration_min, self.duration_max)
        return any((self.created_after, self.created_before, self.reason, *limits))

    def __bool__(self) -> bool:
        return self != Filters()

    def _in_range(self, runs: RunQuerySet) -> RunQuerySet:
        if self.created_after:
            runs = runs.filter(created_at__gte=_time(self.created_after))
        return runs.filter(created_at__lt=_time(self.created_before)) if self.created_before else runs

    def _with_text(self, runs: RunQuerySet) -> RunQuerySet:
        if _is_id(self.text):
            return runs.filter(pk=UUID(self.text))
        # Django escapes the wildcards of LIKE.
        runs = runs.annotate(prompt_start=Left(_PromptText(F("prompt")), MAX_PROMPT))
        return runs.filter(Q(title__icontains=self.text) | Q(prompt_start__icontains=self.text))

    def _within_limits(self, runs: RunQuerySet) -> RunQuerySet:
        if self.cost_min:
            runs = runs.filter(cost_usd__gte=Decimal(self.cost_min))
        if self.cost_max:
            runs = runs.filter(cost_usd__lte=Decimal(self.cost_max))
        if self.duration_min or self.duration_max:
            runs = runs.annotate(duration_us=duration_us())
        if self.duration_min:
            runs = runs.filter(Q(("duration_us__gte", int(self.duration_min) * 1_000_000)))
        return runs.filter(Q(("duration_us__lte", int(self.duration_max) * 1_000_000))) if self.duration_max else runs


def prompt_to_mask() -> Left:
    """Return the expression for the part of a prompt that `Filters.matches` masks before it reads the start."""
    return Left(_PromptText(F("prompt")), MAX_PROMPT + LOOKAHEAD)


def _shows(stored: str, text: str) -> bool:
    cleaned = clean(stored)
    # Without secrets, the stored text counts, as in the database: control characters do not hide a run.
    visible = stored if cleaned == make_legible(stored) else cleaned
    # Cut after masking, because half a secret is not recognised.
    return text.casefold() in visible[:MAX_PROMPT].casefold()


def _is_id(text: str) -> bool:
    return re.match(UUID_PATTERN, text) is not None


def _with_label(label: str) -> Any:
    return Q(labels__contains=[label]) if connection.vendor == "postgresql" else _HasLabel(label)


def _has_external_runs(project: Project) -> bool:
    """Return whether a project has runs with only the name of an agent, which has no index."""
    return AgentRun.objects.filter(project=project).exclude(source=AgentRun.Source.NATIVE).exists()


def _rare_runs(label: str) -> list[UUID] | None:
    """Return the runs with a rare label; None for a frequent label, and on SQLite, which has no index."""
    if connection.vendor != "postgresql":
        return None
    runs = AgentRun.objects.filter(_with_label(label)).order_by().values_list("pk", flat=True)[: RARE + 1]
    ids = list(runs)
    return ids if len(ids) <= RARE else None


def _time(text: str) -> datetime:
    return datetime.fromisoformat(text).replace(tzinfo=UTC)


def _parsed(query: QueryDict, name: str, parse: Callable[[str], str]) -> str:
    return _checked(name, parse, query.get(name, ""))


def _checked(name: str, parse: Callable[[T], V], value: T) -> V:
    try:
        return parse(value)
    except ValueError as error:
        raise InvalidQuery(f"{name} {error}") from None
