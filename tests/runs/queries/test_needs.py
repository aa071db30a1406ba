"""Entries that need a person: the list, its counts, and how each kind of entry appears and disappears."""

from __future__ import annotations

from datetime import timedelta
from typing import Any

import pytest
from django.utils import timezone

from agentops.accounts.models import AuditEntry, Project
from runs.actions import dismissals
from runs.lifecycle import inbox
from runs.models import AgentRun
from runs.queries.needs import NeedKind, NeedPosition, count_of, need_counts, needs
from runs.queries.waiting_for_people import waiting_for_people
from tests.support.engine import make_asking
from tests.support.factories import (
    make_agent,
    make_awaiting_approval,
    make_failed,
    make_project,
    make_run,
    make_waiting,
)
from tests.support.project_rows import external
from timeline.models import Log

pytestmark = [pytest.mark.django_db(transaction=True), pytest.mark.usefixtures("no_hints")]
HOUR = timedelta(hours=1)


@pytest.fixture
def project() -> Project:
    return make_project("alpha")


def kinds(project: Project) -> list[str]:
    return [str(need.kind) for need in needs([project.pk], limit=50)]


def counted(project: Project) -> dict[str, int]:
    return {str(kind): count for kind, count in count_of(project.pk).by_kind.items() if count}


def test_each_kind_is_listed_oldest_first_and_counted(project: Project, django_assert_num_queries: Any) -> None:
    made = [make_awaiting_approval(project), make_waiting(project), make_asking(project)]
    paused = make_run(make_agent(project), "Wait for me")
    inbox.pause(paused.pk, by="user:oscar")
    other = make_project("beta")
    make_waiting(other)

    found = needs([project.pk], limit=50)
    assert [need.run.pk for need in found] == [run.pk for run in (*made, paused)]
    assert kinds(project) == ["approval", "unknown_outcome", "question", "paused"]
    assert counted(project) == dict.fromkeys(kinds(project), 1)
    with django_assert_num_queries(1):
        both = need_counts([project.pk, other.pk])
    assert [both[each.pk].total for each in (project, other)] == [4, 1]
    # With paging, no entry is repeated or missing.
    rest = needs([project.pk], limit=50, after=NeedPosition(found[1].since, found[1].id))
    assert [need.id for need in rest] == [need.id for need in found[2:]]
    assert [need.kind for need in needs([project.pk], limit=50, kinds=[NeedKind.PAUSED])] == ["paused"]
    with django_assert_num_queries(18):
        needs([project.pk], limit=50)

    inbox.stop(paused.pk, by="user:oscar")
    inbox.stop(made[0].pk, by="user:oscar")
    assert kinds(project) == ["unknown_outcome", "question"]


def test_untaken_runs_are_one_entry_for_the_whole_queue(project: Project) -> None:
    runs = [make_run(make_agent(project), str(number)) for number in range(3)]
    assert kinds(project) == []
    for number, run in enumerate(runs):
        AgentRun.objects.filter(pk=run.pk).update(queued_at=timezone.now() - HOUR * (number + 1))
    [need] = needs([project.pk], limit=50)
    assert (need.kind, need.run.pk) == (NeedKind.STALLED, runs[2].pk)
    assert counted(project) == {"stalled": 1}


def test_a_failed_run_leaves_the_list_when_dismissed_forked_or_old(project: Project) -> None:
    failed = [make_failed(project) for _ in range(4)]
    assert kinds(project) == ["failed"] * 4

    assert dismissals.dismiss("user:oscar", failed[0])
    assert not dismissals.dismiss("user:bob", AgentRun.objects.get(pk=failed[0].pk))
    entry = AuditEntry.objects.get(action="run.dismissed")
    assert (entry.actor, entry.object_id) == ("user:oscar", str(failed[0].pk))
    AgentRun.objects.filter(pk=make_run(make_agent(project), "Again").pk).update(forked_from=failed[1].pk)
    assert counted(project) == {"failed": 2}
    AgentRun.objects.filter(pk=failed[2].pk).update(completed_at=timezone.now() - timedelta(days=7, minutes=1))
    assert [need.run.pk for need in needs([project.pk], limit=50)] == [failed[3].pk]
    assert dismissals.dismiss_failed("user:oscar", project, timezone.now() - HOUR) == 0
    assert dismissals.dismiss_failed("user:oscar", project, timezone.now()) == 1
    assert counted(project) == {}
    with pytest.raises(dismissals.NotDismissable, match="this one is queued"):
        dismissals.dismiss("user:oscar", make_run(make_agent(project), "New"))


@pytest.mark.parametrize("reason", ["approval", "input"])
def test_a_waiting_session_is_listed_until_it_continues(project: Project, reason: str) -> None:
    waits = {"type": "run.waiting", "payload": {"reason": reason}}
    run = external(project, "claude", waits)
    [need] = needs([project.pk], limit=50)
    assert (need.kind, need.id, need.since) == (NeedKind.SESSION, run.pk, run.log.last_event_at)
    assert (counted(project), waiting_for_people(project)) == ({"session": 1}, 1)

    external(project, "claude", {"type": "run.phase", "payload": {"status": "running"}})
    assert (counted(project), waiting_for_people(project), kinds(project)) == ({}, 0, [])
    run = external(project, "claude", waits)
    assert dismissals.dismiss("user:oscar", run)
    assert (counted(project), waiting_for_people(project)) == ({}, 0)
    # Later events bring it back.
    external(project, "claude", {"type": "llm.text", "payload": {"text": "Done."}}, waits)
    assert (counted(project), waiting_for_people(project)) == ({"session": 1}, 1)


def test_sessions_that_need_no_answer_are_omitted(project: Project) -> None:
    """Abandoned sessions, sub-agents of a session, and waits that an approval already covers."""
    waits = {"type": "run.waiting", "payload": {"reason": "input"}}
    parent = external(project, "parent", waits)
    AgentRun.objects.filter(pk=external(project, "sub-agent", waits).pk).update(parent_run=parent)
    left = external(project, "left", waits)
    AgentRun.objects.filter(pk=left.pk).update(created_at=timezone.now() - timedelta(days=2))
    asks = {"type": "run.waiting", "payload": {"reason": "approval"}}
    killed = external(project, "killed", asks)
    Log.objects.filter(pk=killed.pk).update(last_event_at=timezone.now() - timedelta(days=8))
    AgentRun.objects.filter(pk=make_awaiting_approval(project).pk).update(source=AgentRun.Source.IMPORT)
    assert counted(project) == {"approval": 1, "session": 1}
    assert sorted(kinds(project)) == ["approval", "session"]
    assert waiting_for_people(project) == 2
