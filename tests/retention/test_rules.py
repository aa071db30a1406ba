"""Which runs are deleted: whole groups, of which all runs ended long enough ago and none is held."""

from __future__ import annotations

import itertools
from datetime import timedelta

import pytest
from django.db import models
from django.utils import timezone

from agentops.accounts.models import AuditEntry, Project
from runs.lifecycle import inbox
from runs.models import Agent, AgentRun, AgentRunMessage, AgentRunToolCall, FlowVisit
from runs.statuses import TERMINAL, RunStatus
from runs.upkeep import invariants, retention
from runs.upkeep.group_removal import HEADS, PARTS
from runs.upkeep.run_groups import LINKS, RetentionReason, run_groups_of
from tests.support.factories import drive, make_agent, make_project, make_run
from tests.support.upkeep import BY, aged, apply, lineage, paused_half_way, there
from timeline.models import Event, Log, Tombstone

pytestmark = pytest.mark.django_db


# --- Age and status ---------------------------------------------------------------------------------------------


def test_old_runs_are_deleted(project: Project, agent: Agent) -> None:
    old, young = aged(drive(make_run(agent)), 91), aged(drive(make_run(agent)), 89)

    done = apply(project)

    assert there(old, young) == [False, True]
    assert (done.runs, done.kept_groups.total()) == (1, 0)
    assert invariants.check() == []


def test_an_unfinished_run_is_kept_however_old(project: Project, agent: Agent) -> None:
    queued, paused = make_run(agent), make_run(agent)
    inbox.pause(paused.pk, by="test")
    long_ago = timezone.now() - timedelta(days=1000)
    AgentRun.objects.update(created_at=long_ago, queued_at=long_ago, started_at=long_ago)

    assert apply(project, 0).runs == 0
    assert there(queued, paused) == [True, True]


@pytest.mark.parametrize("status", sorted(TERMINAL - {RunStatus.RESUMED}))
def test_every_terminal_status_counts_as_ended(project: Project, agent: Agent, status: RunStatus) -> None:
    run = aged(make_run(agent), 100)
    AgentRun.objects.filter(pk=run.pk).update(status=status)

    assert apply(project).runs == 1


def test_a_project_may_keep_its_runs_forever(project: Project, agent: Agent) -> None:
    run = aged(make_run(agent), 10_000)

    assert apply(project, None).runs == 0
    assert there(run) == [True]


def test_only_one_project_is_affected(project: Project, agent: Agent) -> None:
    other = aged(make_run(make_agent(make_project("beta"))), 100)
    aged(make_run(agent), 100)

    assert apply(project).runs == 1
    assert there(other) == [True]


# --- Run groups -------------------------------------------------------------------------------------------------


def test_a_lineage_is_deleted_once_its_last_run_is_old_enough(project: Project, agent: Agent) -> None:
    runs = lineage(agent)
    for run, days in zip(runs, (300, 200, 50), strict=True):
        aged(run, days)

    first = apply(project)
    assert there(*runs) == [True] * 3
    assert first.kept_groups == {RetentionReason.NEEDED: 1}

    aged(runs[-1], 95)
    assert apply(project).runs == 3
    assert there(*runs) == [False] * 3
    assert invariants.check() == []


@pytest.mark.breaks_invariants("links are set by hand")
def test_a_paused_run_keeps_its_earlier_runs(project: Project, agent: Agent) -> None:
    """Their rows hold its conversation, which a resume sends."""
    runs = [aged(run, 300) for run in lineage(agent)]
    AgentRun.objects.filter(pk=runs[-1].pk).update(status=RunStatus.PAUSED, completed_at=None)

    assert apply(project).runs == 0
    assert there(*runs) == [True] * 3


@pytest.mark.breaks_invariants("links are set by hand")
@pytest.mark.parametrize("link", ["parent_run", "forked_from", "child_run"])
def test_linked_runs_are_kept_until_both_are_old(project: Project, agent: Agent, link: str) -> None:
    """In both directions: a run keeps the runs it was made from, and the runs made from it."""
    for young_first in (True, False):
        one, other = drive(make_run(agent)), drive(make_run(agent))
        if link == "child_run":
            AgentRunToolCall.objects.filter(pk=one.tool_calls.first().pk).update(child_run=other)
        else:
            AgentRun.objects.filter(pk=other.pk).update(**{link: one})
        aged(one, 10 if young_first else 300)
        aged(other, 300 if young_first else 10)

        assert apply(project).runs == 0
        aged(one, 300)
        aged(other, 300)
        assert apply(project).runs == 2
        assert there(one, other) == [False, False]


@pytest.mark.breaks_invariants("links are set by hand")
def test_each_run_of_a_group_finds_the_group(agent: Agent) -> None:
    """A chain with every kind of link, searched from both ends and the middle."""
    runs = [*lineage(agent, length=2), *(make_run(agent) for _ in range(3))]
    AgentRun.objects.filter(pk=runs[2].pk).update(forked_from=runs[1])
    AgentRun.objects.filter(pk=runs[3].pk).update(parent_run=runs[2])
    AgentRun.objects.filter(pk=runs[4].pk).update(parent_run=runs[2])
    alone = make_run(agent)

    for run in runs:
        [family] = run_groups_of([run.pk])
        assert family.run_ids == sorted(each.pk for each in runs)
    assert len(run_groups_of([alone.pk, *(run.pk for run in runs)])) == 2


def test_many_groups_on_many_pages(project: Project, agent: Agent, monkeypatch: pytest.MonkeyPatch) -> None:
    """Each is visited once: the counts are right although a group appears on several pages."""
    monkeypatch.setattr(retention, "PAGE", 2)
    gone = [aged(make_run(agent), 100 + number) for number in range(5)]
    kept = lineage(agent, length=4)
    for run, days in zip(kept, (180, 102.5, 99, 1), strict=True):
        aged(run, days)
    gone += [aged(run, 103.5) for run in lineage(agent, length=3)]

    before = retention.preview(project, 90)
    done = apply(project)

    assert (before.runs, before.kept_groups) == (done.runs, done.kept_groups) == (8, {RetentionReason.NEEDED: 1})
    assert there(*gone, *kept) == [False] * 8 + [True] * 4


def test_every_link_between_runs_is_followed() -> None:
    """A new column that refers to a run must be known to the rule, or deletion would break the reference."""
    of_runs = {f.attname for f in AgentRun._meta.concrete_fields if f.related_model is AgentRun}
    others = {
        (relation.related_model, relation.field.name)
        for relation in AgentRun._meta.related_objects
        if relation.related_model is not AgentRun
    }

    assert {*of_runs, "flow_run_id"} == set(LINKS)
    # A visit is deleted with its flow run, which belongs to the group of its runs.
    unowned = {(AgentRunToolCall, "child_run"), (FlowVisit, "session")}
    assert others - {(part.model, part.owner) for part in PARTS} == unowned


def test_tables_of_a_run_are_deleted_in_dependency_order(project: Project) -> None:
    """Referring rows are deleted first, because each batch is a separate transaction."""
    order = [part.model for part in (*PARTS, *HEADS)] + [Log]
    for model in order:
        for relation in model._meta.related_objects:
            if relation.related_model in (model, Tombstone) or relation.field.remote_field.on_delete is models.SET_NULL:
                continue
            assert relation.related_model in order, relation
            assert order.index(relation.related_model) < order.index(model), relation
    assert order.index(AgentRunToolCall) < order.index(AgentRunMessage)


# --- Holds ------------------------------------------------------------------------------------------------------


def test_a_hold_keeps_the_whole_group(project: Project, agent: Agent) -> None:
    runs = [aged(run, 300) for run in lineage(agent)]
    retention.hold(runs[1].pk, reason="claim 4711", by=BY)

    assert apply(project).kept_groups == {RetentionReason.HELD: 1}
    assert there(*runs) == [True] * 3

    retention.release(runs[1].pk, reason="settled", by=BY)
    assert apply(project).runs == 3


def test_holds_are_audited(agent: Agent) -> None:
    """The entry says who held it and why; the time of the first hold is kept."""
    run = make_run(agent)
    first = retention.hold(run.pk, reason="claim 4711", by=BY).held_at
    assert retention.hold(run.pk, reason="claim 4712", by=BY).held_at == first
    assert retention.release(run.pk, reason="settled", by=BY).held_at is None

    entries = AuditEntry.objects.filter(object_id=str(run.pk)).order_by("created_at", "pk")
    assert [entry.action for entry in entries] == ["run.held", "run.held", "run.released"]
    assert [entry.after["reason"] for entry in entries] == ["claim 4711", "claim 4712", "settled"]
    assert {entry.actor for entry in entries} == {BY}
    assert {entry.project_id for entry in entries} == {agent.project_id}


# --- The dry run ------------------------------------------------------------------------------------------------


def test_a_dry_run_lists_exactly_the_runs_to_delete_and_changes_nothing(project: Project, agent: Agent) -> None:
    aged(drive(make_run(agent)), 100)
    aged(paused_half_way(agent), 100)
    aged(make_run(agent), 10)
    before = [model.objects.count() for model in (AgentRun, Event, AgentRunMessage, Tombstone, AuditEntry)]

    told = retention.preview(project, 90)

    assert before == [model.objects.count() for model in (AgentRun, Event, AgentRunMessage, Tombstone, AuditEntry)]
    done = apply(project)
    counted = {table: count for table, count in told.rows.items() if count}
    assert counted == {table: count for table, count in done.rows.items() if table != "timeline_log"}
    assert told.runs == 2


def test_a_dry_run_is_quick_with_many_runs(
    project: Project, agent: Agent, django_assert_max_num_queries: object
) -> None:
    """A constant number of queries for each page of groups that are kept."""
    for _ in itertools.repeat(None, 20):
        retention.hold(aged(make_run(agent), 100).pk, reason="x", by=BY)

    with django_assert_max_num_queries(8):  # type: ignore[operator]
        assert retention.preview(project, 90).kept_groups == {RetentionReason.HELD: 20}
