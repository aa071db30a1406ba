"""The audit log: its fields, and that entries cannot be altered."""

from __future__ import annotations

from datetime import UTC, datetime
from typing import Any

import pytest
from django.db import transaction

from agentops.accounts.access import SYSTEM, principal_for_user
from agentops.accounts.audit import record
from agentops.accounts.keys import create_key, revoke, rotate
from agentops.accounts.models import AuditEntry, AuditEntryAltered, Project, Role


def test_record_stores_an_entry(project: Project, member: Any) -> None:
    alice = principal_for_user(member("alice", Role.ADMIN), ip="192.0.2.7")
    moment = datetime(2026, 3, 1, tzinfo=UTC)

    entry = record(alice, "agent.changed", project=project, obj=project, before={"n": 1}, after={"at": moment})

    entry.refresh_from_db()
    assert (entry.actor, entry.ip, entry.action, entry.project) == ("user:alice", "192.0.2.7", "agent.changed", project)
    assert (entry.object_type, entry.object_id) == ("projects.project", str(project.pk))
    assert (entry.before, entry.after) == ({"n": 1}, {"at": "2026-03-01T00:00:00Z"})


def test_unknown_fields_stay_empty(project: Project) -> None:
    entry = record("system", "login.failed", project=None)

    entry.refresh_from_db()
    assert (entry.project, entry.ip, entry.object_type, entry.before, entry.after) == (None, None, "", None, None)


@pytest.mark.parametrize(
    ("given", "kept"),
    [
        ("2001:db8::1", "2001:db8::1"),
        ("fe80::1%eth0", "fe80::1"),
        ("unknown", None),
        ("1.2.3.4, 5.6.7.8", None),
        ("", None),
        ("\x00", None),
    ],
)
def test_an_invalid_ip_address_does_not_undo_the_change(given: str, kept: str | None, project: Project) -> None:
    entry = record(SYSTEM, "run.stopped", project=project, ip=given)

    entry.refresh_from_db()
    assert entry.ip == kept


def test_every_change_of_a_key_is_one_entry(project: Project) -> None:
    key = create_key(project, name="ci", scopes=["read"], actor=SYSTEM).key
    fresh = rotate(key, actor=SYSTEM).key
    revoke(fresh, actor=SYSTEM)

    entries = AuditEntry.objects.filter(project=project, object_type="projects.apikey").order_by("id")
    assert [(entry.action, entry.object_id) for entry in entries] == [
        ("key.created", str(key.pk)),
        ("key.rotated", str(fresh.pk)),
        ("key.revoked", str(fresh.pk)),
    ]


def test_entries_cannot_be_altered(project: Project) -> None:
    entry = AuditEntry.objects.filter(project=project).get()
    entry.actor = "someone else"

    for alter in (
        entry.save,
        entry.delete,
        lambda: AuditEntry.objects.update(actor="someone else"),
        lambda: AuditEntry.objects.filter(pk=entry.pk).delete(),
        lambda: project.audit_entries.all().delete(),
        lambda: AuditEntry.objects.bulk_update([entry], ["actor"]),
    ):
        with pytest.raises(AuditEntryAltered), transaction.atomic():
            alter()

    assert AuditEntry.objects.get(pk=entry.pk).actor == "system"


def test_entries_outlive_their_project(project: Project) -> None:
    project_id = project.pk

    project.delete()

    entry = AuditEntry.objects.get()
    assert (entry.project, entry.action, entry.object_id) == (None, "project.created", str(project_id))
