"""Runs and other rows that a command line names by an ID, or by a short form of it: its beginning or its end."""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import TypeVar
from uuid import UUID

from django.core.management.base import CommandError
from django.db.models import Model, Q, QuerySet

from agentops.accounts.access import SYSTEM, Action, visible_rows
from agentops.accounts.command_base import EXIT_AMBIGUOUS, EXIT_INVALID, EXIT_NOT_FOUND
from agentops.accounts.current_project import named_project
from agentops.base.redaction import project_scope
from agentops.base.refusals import Conflict, Refusal
from runs.access import RunT, expired_error
from runs.errors import FlowRunNotFound, RunNotFound
from runs.models import AgentRun, CliSession, FlowRun
from timeline.models import Tombstone

#: Minimum characters of a short ID.
MIN_SHORT = 4
#: Maximum runs that an error lists.
MAX_CANDIDATES = 10
HEX = re.compile(r"[0-9a-f]{1,32}", re.ASCII)
DIGITS = 32
#: The primary key of a run refers to its log, and a relation has no lookup for texts. This needs no join.
ID_OF_RUN = "log__id"
RowT = TypeVar("RowT", bound=Model)


def find_run(reference: str, project: str | None = None) -> AgentRun:
    """Return the run with this ID or unique short ID, or the run of the program session with this ID.

    `project` is the slug or the ID of the only project to search. Raises `ambiguous_run` or `RunNotFound`.
    """
    runs = AgentRun.objects.filter(_matches(reference, ID_OF_RUN))
    if (digits := _digits(reference)) and len(digits) == DIGITS:
        session = CliSession.objects.filter(pk=UUID(digits)).first()
        runs = AgentRun.objects.filter(pk=session.run_id) if session else runs
    if project is not None:
        runs = runs.filter(project=named_project(project, Action.READ))
    return _only(reference, visible_rows(runs, SYSTEM).select_related("project"))


def find_flow_run(reference: str, project: str | None = None) -> FlowRun:
    """Return the flow run with this ID or unique short ID. Raises `ambiguous_run` or `FlowRunNotFound`."""
    rows = FlowRun.objects.filter(_matches(reference, ID_OF_RUN))
    if project is not None:
        rows = rows.filter(project=named_project(project, Action.READ))
    return _only(reference, rows.select_related("project", "log"))


def find_row(rows: QuerySet[RowT], reference: str, kind: str) -> RowT:
    """Return the row with this ID or unique short ID. `kind` names it in errors, such as "import".

    Raises `CommandError` for a text that no ID can contain, for no row and for several rows.
    """
    if _digits(reference) is None:
        raise CommandError(f"{reference[:64]!r} is not a valid {kind} ID", returncode=EXIT_INVALID)
    found = list(rows.filter(_matches(reference)).order_by("-pk")[: MAX_CANDIDATES + 1])
    if not found:
        raise CommandError(f"{kind} not found: {reference[:64]!r}", returncode=EXIT_NOT_FOUND)
    if problem := _problem(reference, len(found), kind):
        candidates = _list_of([str(row.pk) for row in found])
        raise CommandError(f"{reference!r} {problem}: {candidates}", returncode=EXIT_AMBIGUOUS)
    return found[0]


def find_run_or_flow_run(reference: str) -> AgentRun | FlowRun:
    """Return the run, or else the flow run, with this ID or unique prefix."""
    try:
        return find_run(reference)
    except RunNotFound:
        return find_flow_run(reference)


def _only(reference: str, rows: QuerySet[RunT]) -> RunT:
    """Return the only row. Raises `ambiguous_run` for a short ID that is too short or matches several runs."""
    candidates = list(rows.order_by("-pk")[: MAX_CANDIDATES + 1])
    if not candidates:
        raise _missing(reference, rows.model)
    if problem := _problem(reference, len(candidates), "run"):
        listed = _list_of([f"{run.pk} ({run.status})" for run in candidates])
        raise Conflict(
            f"{reference!r} {problem}: {listed}",
            code="ambiguous_run",
            candidates=[str(run.pk) for run in candidates],
        )
    project_scope.add(candidates[0].project_id)
    return candidates[0]


def _problem(reference: str, count: int, kind: str) -> str:
    """Return why a short ID with this number of matches is ambiguous; empty if it is not."""
    if len(reference.replace("-", "")) < MIN_SHORT:
        return f"is too short: enter at least {MIN_SHORT} characters"
    return f"matches more than one {kind}" if count > 1 else ""


def _missing(reference: str, model: type[Model]) -> Refusal:
    """Return the error for a missing run; for a deleted run, with the facts of its tombstone."""
    stones = list(Tombstone.objects.filter(_matches(reference))[:2])
    if len(stones) == 1:
        return expired_error(stones[0])
    if model is FlowRun:
        return FlowRunNotFound(f"flow run not found: {reference[:64]!r}")
    return RunNotFound(f"run not found: {reference[:64]!r}")


def _matches(reference: str, field: str = "pk") -> Q:
    """Return the condition for rows whose ID, in `field`, is, begins with or ends with the reference.

    The beginning is a range of the primary key, and is searched by its index. The end is compared with every ID.
    """
    digits = _digits(reference)
    if digits is None:
        return Q(pk__in=())
    low, high = UUID(digits.ljust(DIGITS, "0")), UUID(digits.ljust(DIGITS, "f"))
    if len(digits) == DIGITS:
        return Q(pk=low)
    text = reference.lower()
    begins = Q(pk__gte=low, pk__lte=high) if text == digits or str(low).startswith(text) else Q(pk__in=())
    end = _end_of_id(digits)
    return begins | Q(**{f"{field}__endswith": end}) if text in (digits, end) else begins


def _end_of_id(digits: str) -> str:
    """Return the digits with the dashes of the end of an ID. Django removes them where IDs are stored without."""
    whole = str(UUID(digits.rjust(DIGITS, "0")))
    return next(end for at in range(len(whole)) if len((end := whole[at:]).replace("-", "")) == len(digits)).lstrip("-")


def is_short_id(text: str) -> bool:
    """Return whether a text can be a part of an ID, and is not a whole one."""
    digits = _digits(text)
    return digits is not None and len(digits) < DIGITS


def _digits(reference: str) -> str | None:
    """Return the hexadecimal digits of a text; None if no ID can contain it."""
    digits = reference.lower().replace("-", "")
    return digits if HEX.fullmatch(digits) else None


def _list_of(texts: Sequence[str]) -> str:
    text = ", ".join(texts[:MAX_CANDIDATES])
    return text if len(texts) <= MAX_CANDIDATES else f"{text} and more"
