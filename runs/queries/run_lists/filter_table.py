"""The table of the run list's filters.

The form of the list, saved views, exports, the API with its description, and the command line follow from it.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from datetime import UTC, datetime
from decimal import Decimal
from typing import Any
from uuid import UUID

from agentops.accounts.models import Project
from runs.queries.run_lists import filter_choices
from runs.queries.run_lists import filter_conditions as conditions
from runs.queries.run_lists import filter_values as values
from runs.queries.run_lists.filter_conditions import Condition, compare
from runs.queries.run_lists.filter_values import ValueKind

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
    #: In the form. Empty: only the API's list has the filter.
    label: str = ""
    #: In the API's list: its parameter. None: the same name. Empty: the list does not have the filter.
    api_name: str | None = None
    example: Any = None
    #: Whether the database finds the runs by an index. Other filters are tested on the next runs only: see run_windows.
    has_index: bool = False
    #: The choices of a menu in the form, for what a project has.
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
        "status", values.STATUSES, "Filter by status.", compare("status__in", lambda value: value.split(",")),
        label="Status", example=["paused", "failed"], has_index=True,
    ),
    ListFilter(
        "agent", values.NAME, "Filter by agent name.", conditions.of_agent,
        label="Agent", api_name="agent_id", example="reviewer", has_index=True, choices=filter_choices.agents,
    ),
    ListFilter("source", values.SOURCE, "Filter by source.", compare("source"), label="Source", has_index=True),
    ListFilter(
        "schedule", values.ID, "Filter by the schedule that started the run.", compare("schedule", UUID),
        label="Schedule", api_name="schedule_id", has_index=True, choices=filter_choices.schedules,
    ),
    # The API's list has a parameter of its own, which searches messages too.
    ListFilter(
        "q", values.SEARCH, "Filter by a text in the title or the first prompt, or by run ID.", conditions.with_text,
        label="Title, prompt or ID", api_name="",
    ),
    ListFilter(
        "root", values.FLAG, "Without child runs and runs that continue another run.", conditions.is_root,
        label="Root runs only", hint="Hide child runs and runs that continue another run",
    ),
    ListFilter(
        "label", values.NAME, "Filter by label, exact match.", conditions.with_label,
        label="Label", example="nightly", has_index=True,
    ),
    ListFilter(
        "created_after", values.TIME, "Runs created at this time or later.", compare("created_at__gte", _moment),
        label="From (UTC)", example="2026-11-20T00:00:00Z", has_index=True, is_more=True,
    ),
    ListFilter(
        "created_before", values.TIME, "Runs created before this time.", compare("created_at__lt", _moment),
        label="Until (UTC)", example="2026-11-21T00:00:00Z", has_index=True, is_more=True,
    ),
    ListFilter(
        "cost_min", values.DOLLARS, "Least cost in US dollars.", compare("cost_usd__gte", Decimal),
        label="Cost from ($)", example="0.25", is_more=True,
    ),
    ListFilter(
        "cost_max", values.DOLLARS, "Highest cost in US dollars.", compare("cost_usd__lte", Decimal),
        label="Cost to ($)", is_more=True,
    ),
    ListFilter(
        "duration_min", values.SECONDS, "Least duration in whole seconds.", conditions.took_at_least,
        label="Duration from (s)", example="60", is_more=True,
    ),
    ListFilter(
        "duration_max", values.SECONDS, "Highest duration in whole seconds.", conditions.took_at_most,
        label="Duration to (s)", is_more=True,
    ),
    ListFilter(
        "reason", values.LINE, "Filter by status reason or error type; case of A to Z is ignored.",
        conditions.with_reason, label="Reason or error type", example="rate_limited", is_more=True,
    ),
    ListFilter("parent_run_id", values.ID, "Filter by parent run.", compare("parent_run", UUID), has_index=True),
    ListFilter(
        "root_run_id", values.ID, "Filter by lineage: the run with this ID and all runs that continue it.",
        compare("root_run", UUID), has_index=True,
    ),
    ListFilter(
        "forked_from", values.ID, "Filter by the run that was forked.", compare("forked_from", UUID), has_index=True
    ),
)  # fmt: skip
#: The filters of the page, of exports and of the command line, by parameter.
ON_SITE = {one.name: one for one in FILTERS if one.label}
#: The filters of the API's list, by parameter.
IN_API = {one.name if one.api_name is None else one.api_name: one for one in FILTERS if one.api_name != ""}
