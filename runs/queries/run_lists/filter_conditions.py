"""The conditions of the run list's filters, as Q objects on runs."""

from __future__ import annotations

import re
from collections.abc import Callable
from typing import Any
from uuid import UUID

from django.db import connection
from django.db.models import BooleanField, F, Func, Q, TextField
from django.db.models.functions import Left
from django.db.models.lookups import GreaterThanOrEqual, IContains, LessThanOrEqual

from agentops.accounts.names import UUID_PATTERN
from runs.models import Agent, AgentRun
from runs.queries.run_lists.run_order import duration_us
from timeline.display import LOOKAHEAD, clean, make_legible

#: Returns the condition for a parsed value, which is not empty, in a project.
Condition = Callable[[str, UUID], Q]
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


def compare(lookup: str, convert: Callable[[str], Any] = str) -> Condition:
    """Return the condition that compares a column, by a lookup of Django, with the converted value."""
    return lambda value, project_id: Q((lookup, convert(value)))


def is_root(value: str, project_id: UUID) -> Q:
    """Match runs that are no child of another run and continue none."""
    return Q(parent_run=None, root_run=F("pk"))


def of_agent(value: str, project_id: UUID) -> Q:
    """Match runs by the name of the agent, including runs of other programs with this name. One query."""
    named = Q(agent=None, agent_config__agent_id=value)
    # The ID has an index and statistics, which the name does not.
    agent = Agent.objects.filter(project=project_id, slug=value).values_list("pk", flat=True).first()
    return named if agent is None else named | Q(agent=agent)


def with_label(value: str, project_id: UUID) -> Q:
    """Match runs by a label."""
    return Q(labels__contains=[value]) if connection.vendor == "postgresql" else Q(_HasLabel(value))


def with_reason(value: str, project_id: UUID) -> Q:
    """Match runs by the reason of their status, or by the type of their error."""
    return Q(status_reason__iexact=value) | Q(error_type__iexact=value)


def took_at_least(value: str, project_id: UUID) -> Q:
    """Match runs by their duration in seconds."""
    return Q(GreaterThanOrEqual(duration_us(), int(value) * 1_000_000))


def took_at_most(value: str, project_id: UUID) -> Q:
    """Match runs by their duration in seconds."""
    return Q(LessThanOrEqual(duration_us(), int(value) * 1_000_000))


def with_text(value: str, project_id: UUID) -> Q:
    """Match runs by their ID, or by a text in the stored title or prompt, which `shows_text` checks again."""
    if _is_id(value):
        return Q(pk=UUID(value))
    # Django escapes the wildcards of LIKE.
    return Q(title__icontains=value) | Q(IContains(Left(_PromptText(F("prompt")), MAX_PROMPT), value))


def shows_text(text: str, title: str, prompt: str) -> bool:
    """Return whether the text is in the redacted title, or in the start of the redacted prompt.

    Stored texts may contain secrets, which must not be searchable. `prompt`: in the form of `prompt_to_mask`.
    """
    return _is_id(text) or _shows(title, text) or _shows(prompt, text)


def prompt_to_mask() -> Left:
    """Return the expression for the part of a prompt that `shows_text` masks before it reads the start."""
    return Left(_PromptText(F("prompt")), MAX_PROMPT + LOOKAHEAD)


def rare_runs(label: str, project_id: UUID) -> list[UUID] | None:
    """Return the runs with a rare label; None for a frequent label, and on SQLite, which has no index."""
    if connection.vendor != "postgresql":
        return None
    runs = AgentRun.objects.filter(with_label(label, project_id)).order_by().values_list("pk", flat=True)[: RARE + 1]
    ids = list(runs)
    return ids if len(ids) <= RARE else None


def _shows(stored: str, text: str) -> bool:
    cleaned = clean(stored)
    # Without secrets, the stored text counts, as in the database: control characters do not hide a run.
    visible = stored if cleaned == make_legible(stored) else cleaned
    # Cut after masking, because half a secret is not recognised.
    return text.casefold() in visible[:MAX_PROMPT].casefold()


def _is_id(text: str) -> bool:
    return re.match(UUID_PATTERN, text) is not None
