"""Projects and members: validation, and that a project always keeps an admin."""

from __future__ import annotations

import threading
from collections.abc import Callable
from typing import Any

import pytest
from django.contrib.auth.models import User
from django.db import connection, connections
from django.db.models import ProtectedError

from agentops.accounts.access import SYSTEM
from agentops.accounts.errors import InvalidSlug
from agentops.accounts.memberships import add_member, change_role, create_project, remove_member
from agentops.accounts.models import AuditEntry, Membership, Project, Role
from agentops.base.refusals import Refusal
from tests.support.run_checks import refuses


def roles(project: Project) -> dict[str, str]:
    return {m.user.username: m.role for m in project.memberships.select_related("user")}


def trail() -> list[tuple[str, Any, Any]]:
    entries = AuditEntry.objects.exclude(action="project.created").order_by("id")
    return [(entry.action, entry.before, entry.after) for entry in entries]


# --- Projects ---------------------------------------------------------------------------------------------------
def test_create_project(db: None) -> None:
    project = create_project("my-project-2", " Ours ", actor="user:boss")

    assert (project.slug, project.name) == ("my-project-2", "Ours")
    entry = AuditEntry.objects.get()
    assert (entry.actor, entry.action, entry.project) == ("user:boss", "project.created", project)
    assert entry.after == {"slug": "my-project-2", "name": "Ours"}


@pytest.mark.parametrize(
    "slug",
    [
        *("", "A", "-a", "a_b", "a b", "a\n", "ä", "a.b", "../a", "a" * 64, "a\x00", "\udcff"),
        # It would be taken for an ID.
        "01a1f86c-1b1a-72f0-b808-0c8f1390c3f4",
    ],
)
def test_invalid_slugs_are_refused(slug: str, db: None) -> None:
    with pytest.raises(InvalidSlug) as refusal:
        create_project(slug, "Name", actor=SYSTEM)

    assert len(str(refusal.value)) < 300
    assert not Project.objects.exists()


@pytest.mark.parametrize("name", ["", "  ", "a" * 201, "a\x00", "a\nb", "\u2028a\u2028b", "\udcff"])
def test_invalid_names_are_refused(name: str, db: None) -> None:
    with refuses("invalid_name"):
        create_project("ours", name, actor=SYSTEM)


def test_names_may_be_in_any_script(db: None) -> None:
    assert create_project("ours", "Проект 計画 👩\u200d🔬", actor=SYSTEM).name == "Проект 計画 👩\u200d🔬"


def test_slugs_are_unique(project: Project) -> None:
    with refuses("slug_taken", match="'alpha'"):
        create_project("alpha", "Again", actor=SYSTEM)

    # The failed insert broke neither the transaction nor the audit log.
    assert AuditEntry.objects.count() == Project.objects.count() == 1


# --- Members ----------------------------------------------------------------------------------------------------
def test_members_are_added_changed_and_removed(project: Project) -> None:
    alice, bob = User.objects.create(username="alice"), User.objects.create(username="bob")
    add_member(project, alice, Role.ADMIN, actor=SYSTEM)
    add_member(project, bob, "viewer", actor="user:alice")
    change_role(project, bob, Role.OPERATOR, actor="user:alice")
    change_role(project, bob, Role.OPERATOR, actor="user:alice")
    assert roles(project) == {"alice": "admin", "bob": "operator"}
    remove_member(project, bob, actor="user:alice")
    assert roles(project) == {"alice": "admin"}

    assert trail() == [
        ("member.added", None, {"user": "alice", "role": "admin"}),
        ("member.added", None, {"user": "bob", "role": "viewer"}),
        ("member.role_changed", {"user": "bob", "role": "viewer"}, {"user": "bob", "role": "operator"}),
        ("member.removed", {"user": "bob", "role": "operator"}, None),
    ]


def test_invalid_changes_of_members_are_refused(project: Project, foreign: Project, member: Any) -> None:
    bob, zoe = member("bob", Role.VIEWER), member("zoe", Role.VIEWER, of=foreign)
    before = trail()

    for code, act in [
        ("already_member", lambda: add_member(project, bob, Role.ADMIN, actor=SYSTEM)),
        ("invalid_role", lambda: add_member(project, zoe, "owner", actor=SYSTEM)),
        ("invalid_role", lambda: change_role(project, bob, "", actor=SYSTEM)),
        ("member_not_found", lambda: change_role(project, zoe, Role.ADMIN, actor=SYSTEM)),
        ("member_not_found", lambda: remove_member(project, zoe, actor=SYSTEM)),
    ]:
        with refuses(code):
            act()

    assert (roles(project), roles(foreign), trail()) == ({"bob": "viewer"}, {"zoe": "viewer"}, before)


WAYS_OUT: dict[str, Callable[[Project, User], object]] = {
    "remove": lambda project, user: remove_member(project, user, actor=SYSTEM),
    "demote": lambda project, user: change_role(project, user, Role.OPERATOR, actor=SYSTEM),
}


@pytest.mark.parametrize("way", WAYS_OUT)
def test_the_last_admin_cannot_be_removed(way: str, project: Project, foreign: Project, member: Any) -> None:
    alice = member("alice", Role.ADMIN)
    member("bob", Role.OPERATOR)
    # Neither an admin of another project nor one who cannot sign in counts.
    member("zoe", Role.ADMIN, of=foreign)
    gone = member("gone", Role.ADMIN)
    User.objects.filter(pk=gone.pk).update(is_active=False)

    with refuses("last_admin"):
        WAYS_OUT[way](project, alice)
    assert roles(project)["alice"] == "admin"

    member("carol", Role.ADMIN)
    WAYS_OUT[way](project, alice)
    assert roles(project).get("alice") != "admin"


@pytest.mark.parametrize("way", WAYS_OUT)
def test_an_admin_who_cannot_sign_in_can_be_removed(way: str, project: Project, member: Any) -> None:
    gone = member("gone", Role.ADMIN)
    User.objects.filter(pk=gone.pk).update(is_active=False)

    WAYS_OUT[way](project, gone)


def test_a_member_cannot_be_deleted_as_a_user(project: Project, member: Any) -> None:
    alice = member("alice", Role.ADMIN)

    with pytest.raises(ProtectedError):
        alice.delete()


@pytest.mark.postgres
@pytest.mark.django_db(transaction=True)
def test_two_admins_who_remove_each_other_leave_one(project: Project, member: Any) -> None:
    people = [member("alice", Role.ADMIN), member("bob", Role.ADMIN)]
    start, refused = threading.Barrier(2), []

    def remove(user: User) -> None:
        try:
            start.wait(60)
            remove_member(project, user, actor=SYSTEM)
        except Refusal as error:
            refused.append(error.code)
        finally:
            connections.close_all()

    for _ in range(10):
        threads = [threading.Thread(target=remove, args=(user,)) for user in people]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join(60)
        assert Membership.objects.filter(project=project, role=Role.ADMIN).count() == 1
        for user in people:
            Membership.objects.get_or_create(project=project, user=user, defaults={"role": Role.ADMIN})

    assert refused == ["last_admin"] * 10
    assert connection.vendor == "postgresql"
