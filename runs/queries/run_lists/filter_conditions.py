"""The conditions of the run list's filters, as Q objects on runs."""

from __future__ import annotations

import re
from collections.abc import Callable
from typing import Any
from uuid import UUID

from django.db import connection
from django.db.models import BooleanField, F, Func, Q
from django.db.models.functions import Left
from django.db.models.lookups import GreaterThanOrEqual, IContains, LessThanOrEqual

from agentops.accounts.names import UUID_PATTERN
from runs.models import Agent, AgentRun
from runs.models.run import REMOTE
from runs.queries.long_texts import JsonText
from runs.queries.run_lists.run_order import duration_us
from timeline.display import LOOKAHEAD, clean, make_legible

#: Returns the condition for a parsed value, which is not empty, and the ID of a project.
Condition = Callable[[str, UUID], Q]
#: The number of characters of a prompt that a text filter reads.
MAX_PROMPT = 20_000
#: A label that at most this many runs of the site have is looked up by its index.
RARE = 2_000


class _HasLabel(Func):
    """Whether a run has a label, on SQLite."""

    output_field = BooleanField()
    template = "EXISTS (SELECT 1 FROM JSON_EACH(%(expressions)s) AS one WHERE one.value = %%s)"

    def __init__(self, label: str) -> None:
        super().__init__(F("labels"))
        self.label = label

    def as_sqlite(self, compiler: Any, connection: Any, **extra: Any) -> Any:
        sql, params = super().as_sql(compiler, connection, **extra)
        return sql, (*params, self.label)


def compare(lookup: str, convert: Callable[[str], Any] = str) -> Condition:
    """Return a condition that applies a lookup of Django, such as "cost_usd__gte", to the converted value."""
    return lambda value, project_id: Q((lookup, convert(value)))


def is_root(value: str, project_id: UUID) -> Q:
    """Match runs that are neither a child of another run nor continue one."""
    return Q(parent_run=None, root_run=F("pk"))


def of_agent(value: str, project_id: UUID) -> Q:
    """Match runs by the name of their agent, also as other programs report it. Takes one query."""
    named = Q(agent=None, agent_config__agent_id=value)
    # Prefer the agent's ID, for which the database has an index and statistics.
    agent = Agent.objects.filter(project=project_id, slug=value).values_list("pk", flat=True).first()
    return named if agent is None else named | Q(agent=agent)


def from_source(value: str, project_id: UUID | None = None) -> Q:
    """Match runs by their source as people see it: `native` excludes the remote runs, which the table has as native."""
    if value == REMOTE:
        return Q(code_version__isnull=False, is_packaged=False)
    by_workers = Q(code_version=None) | Q(is_packaged=True)
    return Q(source=value) & by_workers if value == AgentRun.Source.NATIVE else Q(source=value)


def with_label(value: str, project_id: UUID) -> Q:
    """Match runs by a label."""
    return Q(labels__contains=[value]) if connection.vendor == "postgresql" else Q(_HasLabel(value))


def with_reason(value: str, project_id: UUID) -> Q:
    """Match runs by the reason of their status, or by the type of their error."""
    return Q(status_reason__iexact=value) | Q(error_type__iexact=value)


def compare_duration(lookup: type[GreaterThanOrEqual] | type[LessThanOrEqual]) -> Condition:
    """Return a condition that compares the duration of a run with a value in seconds."""
    return lambda value, project_id: Q(lookup(duration_us(), int(value) * 1_000_000))


def with_text(value: str, project_id: UUID) -> Q:
    """Match runs by their ID, or by a text in the stored title or prompt, which `shows_text` then checks."""
    if _is_id(value):
        return Q(pk=UUID(value))
    # Django escapes the wildcards of LIKE.
    return Q(title__icontains=value) | Q(IContains(Left(JsonText("prompt"), MAX_PROMPT), value))


def shows_text(text: str, title: str, prompt: str) -> bool:
    """Return whether the text is in the redacted title, or in the start of the redacted prompt. True for an ID.

    Stored texts may contain secrets, which must not be searchable. `prompt`: the value of `prompt_to_mask`.
    """
    return _is_id(text) or _is_visible(text, title) or _is_visible(text, prompt)


def prompt_to_mask() -> Left:
    """Return the expression for the beginning of a prompt that `shows_text` needs."""
    return Left(JsonText("prompt"), MAX_PROMPT + LOOKAHEAD)


def rare_runs(label: str, project_id: UUID) -> list[UUID] | None:
    """Return the IDs of the runs with a label that at most `RARE` runs have. None for others, and on SQLite."""
    if connection.vendor != "postgresql":
        return None
    runs = AgentRun.objects.filter(with_label(label, project_id)).order_by().values_list("pk", flat=True)[: RARE + 1]
    ids = list(runs)
    return ids if len(ids) <= RARE else None


def _is_visible(text: str, stored: str) -> bool:
    """Return whether the text occurs in what a person may see of a stored text."""
    cleaned = clean(stored)
    # If nothing was masked, search the stored text, as the SQL condition does: `clean` may change control characters.
    visible = stored if cleaned == make_legible(stored) else cleaned
    # Truncate after masking, because half a secret is not recognised.
    return text.casefold() in visible[:MAX_PROMPT].casefold()


def _is_id(text: str) -> bool:
    return re.match(UUID_PATTERN, text) is not None
