"""Lookup of rights: read afresh each time, by ID or slug, with hostile names, in a constant number of queries."""

from __future__ import annotations

from datetime import timedelta
from typing import Any
from uuid import UUID

import pytest
from django.contrib.auth.models import User
from django.utils import timezone

from agentops.accounts.access import (
    ANONYMOUS,
    SYSTEM,
    Action,
    Principal,
    may,
    principal_for_key,
    principal_for_user,
    project_for,
    projects_for,
    visible_rows,
)
from agentops.accounts.errors import ProjectNotFound
from agentops.accounts.keys import create_key, revoke
from agentops.accounts.memberships import change_role, remove_member
from agentops.accounts.models import ApiKey, Membership, Project, Role
from tests.support.run_checks import refuses

HOSTILE = [
    "",
    " alpha",
    "alpha\n",
    "ALPHA",
    "al\x00pha",
    "\udcff",
    "älpha",
    "' OR 1=1",
    "-alpha",
    "../alpha",
    "a" * 64,
    "a" * 10_000_000,
    "{01a1f86c-1b1a-72f0-b808-0c8f1390c3f4}",
]


def nothing_left(principal: Principal, project: Project) -> bool:
    reads = may(principal, Action.READ, project.pk)
    rows = visible_rows(Membership.objects.all(), principal).exists() or projects_for(principal).exists()
    return not reads and not rows


def test_access_works_by_slug_and_by_id(project: Project, member: Any) -> None:
    alice = principal_for_user(member("alice", Role.VIEWER))

    for name in ("alpha", project.pk, str(project.pk), str(project.pk).upper()):
        assert project_for(alice, name, Action.READ) == project


def test_access_names_the_actor(project: Project, member: Any) -> None:
    alice = principal_for_user(member("alice", Role.VIEWER), ip="192.0.2.1")
    key = create_key(project, name="ci", scopes=["read"], actor=alice).key

    assert (alice.actor, alice.ip, alice.project_id) == ("user:alice", "192.0.2.1", None)
    assert principal_for_key(key).actor == f"key:{key.prefix}"
    assert principal_for_key(key).project_id == project.pk
    assert (SYSTEM.actor, ANONYMOUS.actor) == ("system", "anonymous")


@pytest.mark.parametrize("name", HOSTILE, ids=lambda name: ascii(name[:20]))
def test_hostile_names_are_refused(name: str, project: Project) -> None:
    with pytest.raises(ProjectNotFound):
        project_for(SYSTEM, name, Action.READ)


def test_a_changed_role_takes_effect_at_once(project: Project, member: Any) -> None:
    member("root", Role.ADMIN)
    bob = member("bob", Role.OPERATOR)
    asked = principal_for_user(bob)
    assert may(asked, Action.OPERATE, project.pk)

    change_role(project, bob, Role.VIEWER, actor=SYSTEM)
    assert not may(asked, Action.OPERATE, project.pk)
    assert may(asked, Action.READ, project.pk)

    remove_member(project, bob, actor=SYSTEM)
    assert nothing_left(asked, project)


def test_a_deactivated_user_has_no_rights(project: Project, member: Any) -> None:
    bob = member("bob", Role.ADMIN)
    asked = principal_for_user(bob)

    User.objects.filter(pk=bob.pk).update(is_active=False)

    assert nothing_left(asked, project)


@pytest.mark.parametrize("change", [{"is_superuser": False}, {"is_active": False}])
def test_a_demoted_superuser_has_no_rights(change: dict[str, bool], project: Project, member: Any) -> None:
    boss = member("boss", superuser=True)
    asked = principal_for_user(boss)
    assert may(asked, Action.SUPER, None)

    User.objects.filter(pk=boss.pk).update(**change)

    assert not may(asked, Action.SUPER, None)
    assert nothing_left(asked, project)


def test_a_forged_superuser_has_no_rights(project: Project, member: Any) -> None:
    mallory = member("mallory")
    mallory.is_superuser = True

    assert nothing_left(principal_for_user(mallory), project)


def test_a_revoked_or_expired_key_has_no_rights(project: Project) -> None:
    for change in ("revoke", "expire"):
        key = create_key(project, name="k", scopes=["read", "write"], actor=SYSTEM).key
        asked = principal_for_key(key)
        assert may(asked, Action.OPERATE, project.pk)
        if change == "revoke":
            revoke(key, actor=SYSTEM)
        else:
            ApiKey.objects.filter(pk=key.pk).update(expires_at=timezone.now() - timedelta(seconds=1))
        assert nothing_left(asked, project)


def test_scopes_add_up_but_do_not_include_each_other(project: Project) -> None:
    both = principal_for_key(create_key(project, name="k", scopes=["ingest", "read"], actor=SYSTEM).key)

    assert may(both, Action.INGEST, project.pk)
    assert may(both, Action.READ, project.pk)
    assert not may(both, Action.OPERATE, project.pk)


def test_missing_project_is_refused_for_everyone(project: Project, member: Any) -> None:
    alice = principal_for_user(member("alice", Role.ADMIN))
    key = principal_for_key(create_key(project, name="k", scopes=["read"], actor=SYSTEM).key)

    assert not may(alice, Action.READ, None)
    assert not may(key, Action.READ, None)
    assert not may(ANONYMOUS, Action.READ, None)
    assert not may(alice, Action.READ, UUID(int=0))


def test_a_refusal_names_the_required_role_or_scope(project: Project, member: Any) -> None:
    alice = principal_for_user(member("alice", Role.VIEWER))
    key = principal_for_key(create_key(project, name="k", scopes=["read"], actor=SYSTEM).key)

    for principal, action, code, text in [
        (alice, Action.OPERATE, "role_required", "this requires the role operator or admin"),
        (alice, Action.INGEST, "role_required", "only an API key may do this"),
        (alice, Action.SUPER, "role_required", "only a superuser may do this"),
        (key, Action.INGEST, "scope_required", "this requires an API key with the scope ingest"),
        (key, Action.MANAGE, "scope_required", "API keys may not do this"),
    ]:
        with refuses(code, match=text):
            project_for(principal, "alpha", action)


def test_access_takes_two_queries(project: Project, member: Any, django_assert_num_queries: Any) -> None:
    alice = principal_for_user(member("alice", Role.VIEWER))
    key = principal_for_key(create_key(project, name="k", scopes=["read"], actor=SYSTEM).key)

    for principal in (alice, key):
        with django_assert_num_queries(2):
            project_for(principal, "alpha", Action.READ)


def test_foreign_and_unknown_projects_cost_the_same(
    project: Project, foreign: Project, member: Any, django_assert_num_queries: Any
) -> None:
    alice = principal_for_user(member("alice", Role.ADMIN))

    for name in ("beta", "nowhere"):
        with django_assert_num_queries(1), pytest.raises(ProjectNotFound):
            project_for(alice, name, Action.READ)
