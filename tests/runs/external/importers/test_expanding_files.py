"""Small files that expand to a lot are refused within their budget, and nothing of them is stored."""

from __future__ import annotations

import io
import json
import time
import zipfile
from collections.abc import Callable
from typing import Any

import pytest
from django.core.management import CommandError, call_command
from pytest_django import Settings

from agentops.accounts.access import SYSTEM
from agentops.accounts.models import Project
from runs.external import import_execution, uploads
from runs.external.event_input import IncomingEvent
from runs.external.importers import formats
from runs.external.importers.base import ImportedRun, ImportFile
from runs.external.importers.guarded_reading import budget_of, read_within_budget
from runs.external.uploads import Upload
from runs.models import AgentRun, FileImport, FileImportPiece, ImportState
from tests.support.factories import make_project
from timeline.events.llm import MessageAdded
from timeline.models import Event

pytestmark = pytest.mark.django_db
MIB = 1024 * 1024
#: Size to which the files expand; the limit of the tests is half of it.
EXPANDED = 24 * MIB
TEXT = "x" * MIB
LOG = {"eval": {"task": "attack", "run_id": "r", "task_id": "t"}}


def log_of(messages: list[Any], **also: Any) -> dict[str, Any]:
    return {"id": "1", "epoch": 1, "messages": messages, **also}


def archive(*samples: Any, method: int = zipfile.ZIP_DEFLATED, members: int = 0) -> bytes:
    content = io.BytesIO()
    with zipfile.ZipFile(content, "w", method) as packed:
        packed.writestr("header.json", json.dumps(LOG))
        for number, sample in enumerate(samples):
            packed.writestr(f"samples/{number}_epoch_1.json", json.dumps(sample))
        for number in range(members):
            packed.writestr(f"other/{number}", b"")
    return content.getvalue()


def attached(messages: int, references: int = 1) -> dict[str, Any]:
    """Return a sample whose messages each refer to one text of 1 MiB many times."""
    blocks = [{"type": "text", "text": "attachment://a"}] * references
    return log_of([{"role": "user", "content": blocks}] * messages, attachments={"a": TEXT})


def swe_agent() -> Any:
    """Return a trajectory with one result for many calls of an answer."""
    calls = [{"id": str(i), "function": {"name": "f", "arguments": "{}"}} for i in range(EXPANDED // MIB)]
    answer = {"role": "assistant", "content": "", "agent": "a", "tool_calls": calls}
    result = {"role": "tool", "content": TEXT, "tool_call_ids": [call["id"] for call in calls]}
    return {"history": [{"role": "user", "content": "q", "agent": "a"}, answer, result]}


def many_runs() -> Any:
    return [{"messages": [{"role": "user", "content": "a"}], "id": number} for number in range(EXPANDED // 4096)]


def long_name() -> Any:
    """Return a log in which each run has the task's long name as its agent."""
    samples = [log_of([{"role": "user", "content": "a"}], epoch=number) for number in range(EXPANDED // MIB)]
    return {"eval": LOG["eval"] | {"task": TEXT}, "samples": samples}


def dumped(value: Any) -> bytes:
    return json.dumps(value).encode()


LIMIT = "expands to more than 12 MiB (AGENTOPS_IMPORT_MIB)"
#: The file, its largest size, and the error of the refusal.
ATTACKS: dict[str, tuple[Callable[[], bytes], int, str]] = {
    "inspect: attachments in an archive": (lambda: archive(attached(EXPANDED // MIB)), 8000, LIMIT),
    "inspect: attachments in JSON": (lambda: dumped(LOG | {"samples": [attached(EXPANDED // MIB)]}), 2 * MIB, LIMIT),
    "inspect: one message": (lambda: archive(attached(1, 65)), 8000, "expands to more than 64 MiB, the limit of a"),
    "inspect: a packed sample": (lambda: archive(log_of([], padding=TEXT * 24)), 50_000, LIMIT),
    "inspect: many packed samples": (lambda: archive(*[log_of([], padding=TEXT)] * 24), 50_000, LIMIT),
    "inspect: bzip2": (lambda: archive(log_of([]), method=zipfile.ZIP_BZIP2), 8000, "neither none nor deflate"),
    "inspect: a directory": (lambda: archive(log_of([]), members=10_001), 2 * MIB, "more than 10000 files"),
    "inspect: a long name": (lambda: dumped(long_name()), 2 * MIB, LIMIT),
    "swe-agent: a result of many calls": (lambda: dumped(swe_agent()), 2 * MIB, LIMIT),
    "openai-chat: many runs": (lambda: dumped(many_runs()), MIB, LIMIT),
}


@pytest.fixture
def project(settings: Settings) -> Project:
    settings.AGENTOPS_IMPORT_MIB = EXPANDED // MIB // 2
    return make_project("alpha")


def upload(project: Project, content: bytes) -> FileImport:
    [stored] = uploads.store(SYSTEM, project, [Upload("attack", io.BytesIO(content), len(content))])
    return stored


def test_a_file_that_expands_to_more_than_the_limit_is_refused(project: Project) -> None:
    for name, (make, largest, error) in ATTACKS.items():
        content = make()
        assert len(content) <= largest, name
        stored = upload(project, content)

        assert import_execution.import_next()

        refused = FileImport.objects.get(pk=stored.pk)
        code = "import_too_large" if "expands" in error else "invalid_file"
        assert (refused.state, refused.error_code) == (ImportState.REFUSED, code), (name, refused.error)
        assert error in refused.error, name
        assert not any(model.objects.exists() for model in (AgentRun, Event, FileImportPiece)), name


def test_the_command_refuses_it_too(project: Project, tmp_path: Any) -> None:
    path = tmp_path / "attack.eval"
    path.write_bytes(archive(attached(EXPANDED // MIB)))
    with pytest.raises(CommandError, match="AGENTOPS_IMPORT_MIB") as failure:
        call_command("import_run", str(path), "--project", "alpha")
    assert (failure.value.returncode, AgentRun.objects.exists()) == (7, False)


class SlowImporter:
    """An importer that needs much time for each event of a file of only a few bytes."""

    name, title = "slow", "events that take their time"

    def detect(self, file: ImportFile) -> bool:
        return True

    def read(self, file: ImportFile) -> Any:
        yield ImportedRun(run_ref="slow:1", agent="slow")
        for number in range(100_000):
            sum(range(20_000))
            payload = MessageAdded(role="user", content="x")
            yield IncomingEvent("slow:1", payload.event_type, payload, event_id=str(number))


def test_the_cpu_time_of_an_import_is_limited(
    project: Project, settings: Settings, monkeypatch: pytest.MonkeyPatch
) -> None:
    settings.AGENTOPS_IMPORT_MIB, settings.AGENTOPS_IMPORT_CPU_S = 1, 0.05
    monkeypatch.setattr(formats, "importers", lambda: (SlowImporter(),))
    stored = upload(project, b"slow")

    assert import_execution.import_next()

    refused = FileImport.objects.get(pk=stored.pk)
    assert (refused.state, refused.error_code) == (ImportState.REFUSED, "import_too_large")
    assert "takes more than 0.05 s of CPU time (AGENTOPS_IMPORT_CPU_S)" in refused.error


def units_spent(content: bytes) -> int:
    """Read a file, and return the work units that its reader used."""
    file = ImportFile("chain", content)
    with budget_of(file) as budget:
        for _ in read_within_budget(formats.find(file), file):
            pass
    return budget.spent


def test_a_chain_of_parents_costs_each_link_once() -> None:
    """A new search for each observation's ancestors would be quadratic."""
    spent = []
    for length in (200, 800):
        chain = [
            {"id": str(i), "traceId": "t", "type": "SPAN", "startTime": None, "parentObservationId": str(i - 1)}
            for i in range(1, length)
        ]
        first = {"id": "0", "traceId": "t", "type": "GENERATION", "startTime": "2026-01-01T00:00:00Z", "output": "a"}
        spent.append(units_spent(dumped([first, *chain])))
    assert spent[1] < 5 * spent[0]


def test_a_chain_of_lines_costs_each_line_once() -> None:
    """A new search for the session of each sub-agent line would be quadratic: 20 s for this file of 1 MB."""
    message = {"role": "user", "content": "a"}
    lines = [
        {"type": "user", "uuid": str(i), "parentUuid": str(i - 1), "isSidechain": True, "message": message}
        for i in range(10_000)
    ]
    began = time.thread_time()
    units_spent(b"\n".join(map(dumped, [{"type": "user", "sessionId": "s", "message": message}, *lines])))
    assert time.thread_time() - began < 5
