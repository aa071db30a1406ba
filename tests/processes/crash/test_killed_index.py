"""Kill the process that writes the search index: indexing continues, with each text once."""

from __future__ import annotations

from collections import Counter
from typing import Any

from runs.models import AgentRun, SearchEntry, SearchPosition
from runs.upkeep import search_index
from tests.support.run_checks import found, note
from tests.support.stage import Stage
from tests.support.timing import eventually
from timeline.models import Event

#: Several batches of indexing, and more than one batch of deletion.
NOTES = search_index.DELETE_BATCH + 300


def texts(run: AgentRun) -> Counter[Any]:
    return Counter(SearchEntry.objects.filter(log=run.pk, name="x.note").values_list("key", "text"))


def is_whole() -> bool:
    return SearchPosition.objects.get().event_id == Event.objects.latest("pk").pk


def test_the_index_is_complete_after_a_killed_worker_and_a_killed_command(stage: Stage) -> None:
    run = stage.run([])
    note(run, *[f"needle {number:05}" for number in range(NOTES)])
    last = f'"needle {NOTES - 1:05}"'

    stage.worker(chaos="index.in_transaction:3").killed()

    indexed = SearchEntry.objects.count()
    assert 0 < indexed < NOTES
    assert found(run.project, last) == []
    stage.worker()
    eventually(is_whole, why="the next worker has indexed the rest")
    whole = texts(run)
    assert (len(whole), set(whole.values())) == (NOTES, {1})
    assert len(found(run.project, last)) == 1

    stage.spawn(["search_index", "all"], program="agentops", AGENTOPS_CHAOS="index.deleted").killed()

    eventually(is_whole, why="the worker has deleted the rest, and indexed everything again")
    assert texts(run) == whole
    # All entries are new, including entries that the command had not deleted.
    assert SearchEntry.objects.earliest("pk").pk > NOTES
    assert len(found(run.project, last)) == 1
