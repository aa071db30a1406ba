"""Every right of every user and key, in their own and in a foreign project, read from a copy of the security page."""

from __future__ import annotations

import pytest
from django.contrib.auth.models import User
from django.utils import timezone

from agentops.accounts import access
from agentops.accounts.access import SYSTEM, Action, Principal, may, project_for, projects_for, visible_rows
from agentops.accounts.errors import AuthRequired, ProjectNotFound
from agentops.accounts.models import ApiKey, Membership, Project
from agentops.base.refusals import Forbidden

MATRIX = """
| Action | anon | viewer | operator | admin | key:ingest | key:read | key:write | superuser |
|---|---|---|---|---|---|---|---|---|
| healthz / login page | Y | Y | Y | Y | Y | Y | Y | Y |
| list/read runs, messages, tool calls, events, SSE | - | Y | Y | Y | - | Y | Y | Y |
| reveal redaction originals | never stored, nobody | | | | | | | |
| show masked secrets of what a model said | - | - | - | Y | - | - | - | Y |
| ingest events | - | - | - | - | Y | - | - | - |
| execute remote runs | - | - | - | - | - | - | - | - |
| upload files for import | - | - | Y | Y | Y | - | - | Y |
| view imports | - | Y | Y | Y | Y (its own) | Y | Y | Y |
| create run, send/reply | - | - | Y | Y | - | - | Y | Y |
| pause / resume / stop | - | - | Y | Y | - | - | Y | Y |
| bulk resume by ids | - | - | Y | Y | - | - | Y | Y |
| kill live agent, resume --all | - | - | - | Y | - | - | - | Y |
| approve guarded tool | - | - | Y (not own run if 4-eyes on) | Y | - | - | Y (actor = key) | Y |
| export CSV/JSONL | - | Y | Y | Y | - | Y | Y | Y |
| edit agents, policies, hooks, sinks, webhooks | - | - | - | Y | - | - | - | Y |
| manage keys, members, retention | - | - | - | Y | - | - | - | Y |
| create project, Django admin, check-invariants, replay outbox | - | - | - | - | - | - | - | S |
"""
#: Not actions of a project: open to all, or impossible for all.
OUTSIDE = {"healthz / login page", "reveal redaction originals"}
ACTIONS = {
    "list/read runs, messages, tool calls, events, SSE": Action.READ,
    "show masked secrets of what a model said": Action.REVEAL,
    "ingest events": Action.INGEST,
    "execute remote runs": Action.WORK,
    "upload files for import": Action.IMPORT,
    "view imports": Action.VIEW_IMPORTS,
    "create run, send/reply": Action.OPERATE,
    "pause / resume / stop": Action.OPERATE,
    "bulk resume by ids": Action.OPERATE,
    "kill live agent, resume --all": Action.KILL,
    "approve guarded tool": Action.APPROVE,
    "export CSV/JSONL": Action.EXPORT,
    "edit agents, policies, hooks, sinks, webhooks": Action.CONFIGURE,
    "manage keys, members, retention": Action.MANAGE,
    "create project, Django admin, check-invariants, replay outbox": Action.SUPER,
}


def cells() -> list[tuple[str, str, bool]]:
    """Return (row, column, allowed) of every cell that is an action."""
    lines = [[cell.strip() for cell in line.strip("|").split("|")] for line in MATRIX.strip().splitlines()]
    [_, *columns], _, *rows = lines
    return [
        (label, column, cell[:1] in {"Y", "S"})
        for label, *answers in rows
        if label not in OUTSIDE
        for column, cell in zip(columns, answers, strict=True)
    ]


CELLS = cells()
Cast = dict[str, Principal]


def test_the_whole_table_is_read() -> None:
    assert len(CELLS) == 15 * 8
    assert {label for label, _, _ in CELLS} == set(ACTIONS)
    assert set(ACTIONS.values()) == set(Action)


def test_own_project(cast: Cast, project: Project) -> None:
    assert [(label, who, may(cast[who], ACTIONS[label], project.pk)) for label, who, _ in CELLS] == CELLS


def test_foreign_project(cast: Cast, foreign: Project) -> None:
    """A superuser has the same rights in every project; everyone else has none here."""
    answers = [(label, who, may(cast[who], ACTIONS[label], foreign.pk)) for label, who, _ in CELLS]

    assert answers == [(label, who, allowed and who == "superuser") for label, who, allowed in CELLS]


def test_bulk_check_equals_single_checks(cast: Cast, project: Project, foreign: Project) -> None:
    asked = {(who, each.pk) for who in (*cast.values(), SYSTEM) for each in (project, foreign)}

    for action in Action:
        one_by_one = {(who, where) for who, where in asked if may(who, action, where)}
        assert access.allowed_pairs(asked, action) == one_by_one, action
    User.objects.update(is_active=False)
    ApiKey.objects.update(revoked_at=timezone.now())
    for action in Action:
        assert access.allowed_pairs(asked, action) == {(SYSTEM, project.pk), (SYSTEM, foreign.pk)}, action


def entering(principal: Principal, action: Action) -> Project | tuple[type[Exception], str]:
    """Return the slug of the project entered, or the type of the refusal and its code."""
    try:
        return project_for(principal, "alpha", action)
    except (AuthRequired, Forbidden) as refusal:
        return AuthRequired if isinstance(refusal, AuthRequired) else Forbidden, refusal.code


def test_entering_the_own_project(cast: Cast, project: Project) -> None:
    refusals = {"anon": (AuthRequired, "auth_required"), "key": (Forbidden, "scope_required")}
    expected = {
        (label, who): project if allowed else refusals.get(who.partition(":")[0], (Forbidden, "role_required"))
        for label, who, allowed in CELLS
    }

    assert {(label, who): entering(cast[who], ACTIONS[label]) for label, who, _ in CELLS} == expected


@pytest.mark.parametrize("who", ["viewer", "operator", "admin", "key:ingest", "key:read", "key:write"])
def test_a_foreign_project_looks_like_an_unknown_one(who: str, cast: Cast, foreign: Project) -> None:
    refusals = set()
    for action in Action:
        for name in ("beta", str(foreign.pk), foreign.pk, "nowhere", "00000000-0000-7000-8000-000000000000"):
            with pytest.raises(ProjectNotFound) as refusal:
                project_for(cast[who], name, action)
            refusals.add((str(refusal.value), refusal.value.code, refusal.value.status))

    assert len(refusals) == 1


def test_the_system_may_do_everything(project: Project) -> None:
    for action in Action:
        assert may(SYSTEM, action, project.pk)
        assert project_for(SYSTEM, "alpha", action) == project


#: The projects that each actor can list, and those whose rows each actor can read.
LISTED: dict[str, tuple[set[str], set[str]]] = {
    "anon": (set(), set()),
    "viewer": ({"alpha"}, {"alpha"}),
    "operator": ({"alpha"}, {"alpha"}),
    "admin": ({"alpha"}, {"alpha"}),
    # An ingest key sees its own project but reads nothing in it.
    "key:ingest": ({"alpha"}, set()),
    "key:read": ({"alpha"}, {"alpha"}),
    "key:write": ({"alpha"}, {"alpha"}),
    "superuser": ({"alpha", "beta"}, {"alpha", "beta"}),
}


def test_lists_hold_only_readable_rows(cast: Cast) -> None:
    everything = Membership.objects.select_related("project")
    assert set(LISTED) == set(cast)
    for who, (projects, rows) in LISTED.items():
        mine = visible_rows(everything, cast[who])
        assert {project.slug for project in projects_for(cast[who])} == projects, who
        assert {row.project.slug for row in mine} == rows, who
        # Each row appears once: alpha has three members.
        assert mine.count() == everything.filter(project__slug__in=rows).count(), who
