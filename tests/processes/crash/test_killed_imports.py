"""Kill a worker during an import: another worker starts again, and each message is stored once."""

from __future__ import annotations

import io
import json
import time

import pytest

from agentops.accounts.access import SYSTEM
from agentops.accounts.models import Project
from runs.external import uploads
from runs.external.uploads import Upload
from runs.models import AgentRun, FileImport, FileImportPiece, ImportState
from tests.support.databases import reconnect
from tests.support.recordings import check_run
from tests.support.stage import Stage
from tests.support.timing import eventually

#: Messages in the file; their import takes at least a second.
MESSAGES = 3600


def uploaded(project: Project) -> FileImport:
    words = [{"role": ("user", "assistant")[n % 2], "content": f"Message {n}"} for n in range(MESSAGES)]
    content = json.dumps(words).encode()
    [stored] = uploads.store(SYSTEM, project, [Upload("chat.json", io.BytesIO(content), len(content))])
    return stored


def fresh(file_import: FileImport) -> FileImport:
    return FileImport.objects.get(pk=file_import.pk)


@pytest.mark.parametrize("in_transaction", [False, True], ids=["at its beginning", "in its transaction"])
def test_a_killed_import_is_restarted_without_duplicates(stage: Stage, in_transaction: bool) -> None:
    reconnect()
    project = Project.objects.create(slug="crash", name="Crash")
    stored = uploaded(project)
    first = stage.worker()
    if in_transaction:
        eventually(lambda: fresh(stored).events, why="the file is read, and its import begins")
        time.sleep(0.05)
    else:
        eventually(lambda: fresh(stored).state == ImportState.RUNNING, why="a worker takes the file")
    first.signal(stage.KILL)
    eventually(lambda: not first.alive, why="the worker is gone")
    reconnect()
    interrupted = fresh(stored)
    assert (interrupted.state, interrupted.attempts) == (ImportState.RUNNING, 1)
    assert not AgentRun.objects.exists()
    assert FileImportPiece.objects.exists()

    stage.worker()
    eventually(lambda: fresh(stored).is_finished, why="the second worker has imported it")

    done = fresh(stored)
    run = AgentRun.objects.get()
    check_run(run)
    assert (done.state, done.attempts, done.new_runs, done.error) == (ImportState.DONE, 2, 1, "")
    assert run.messages.count() == MESSAGES
    assert not FileImportPiece.objects.exists()
