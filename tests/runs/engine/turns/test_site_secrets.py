"""The secrets of the site are masked by value in input of runners, programs, files and tools, in any encoding."""

from __future__ import annotations

import base64
import io
import json
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any
from urllib.parse import quote

import pytest
from django.conf import settings as django_settings
from pydantic_ai.messages import ToolCallPart
from pytest_django import Settings

from agentops.accounts.access import SYSTEM
from agentops.base.redaction.json_values import clean_all
from agentops.base.redaction.partial_texts import Stream
from agentops.base.redaction.redact import BUILT_IN, site_secrets
from runs.external import import_execution, uploads
from runs.external.ingest import Sender, record
from runs.external.uploads import Upload
from runs.models import AgentRun, FileImport, ImportState
from runs.providers.base import ModelCall
from tests.support.engine import MakeScripted
from tests.support.factories import drive, make_project
from tests.support.otlp import JSON, Exporter, as_json, logs
from tests.support.run_checks import rows_with
from tests.support.scripted_model import Move
from timeline.models import Event

#: None has a recognizable format.
RUNNER, DATABASE, REDIS, PROVIDER = "vq7/Runner+k2m9Xd41", "pq84-Zx0w", "r3dis%2Fq9Lm2", "gw7-gateway-Q9x2-plain"
ENVIRONMENT = {
    "AGENT_RUNNER_SECRET": f"another-short, {RUNNER}",
    "DATABASE_URL": f"postgresql://agentops:{DATABASE}@db.internal:5432/agentops",
    "REDIS_URL": f"redis://:{REDIS}@cache.internal:6379/0",
    "OPENAI_API_KEY": PROVIDER,
    "AGENTOPS_TELEMETRY_OTLP_HEADERS": "x-team=blue,Authorization=Bearer t7Kq2Lm9",
    "PGPASSWORD": "postgres",
}
SECRETS = (RUNNER, DATABASE, "r3dis/q9Lm2", PROVIDER, "t7Kq2Lm9", django_settings.SECRET_KEY)
ENCODINGS: tuple[Callable[[str], str], ...] = (
    str,
    lambda secret: quote(secret, safe=""),
    lambda secret: base64.b64encode(f"u:{secret}&x".encode()).decode(),
    lambda secret: json.dumps({"body": json.dumps({"is": secret})}),
)
TEXT = "\n".join(f"it is {encode(secret)} here" for secret in SECRETS for encode in ENCODINGS)
ORDINARY = (
    "postgres runs on db.internal:5432, in postgresql://agentops@db.internal:5432/agentops; another-short team is blue"
)


@pytest.fixture(autouse=True)
def _environment(monkeypatch: pytest.MonkeyPatch) -> None:
    for name, value in ENVIRONMENT.items():
        monkeypatch.setenv(name, value)
    site_secrets.cache_clear()


def assert_unreadable(text: str) -> None:
    for secret in SECRETS:
        for encoded in (secret, quote(secret, safe=""), base64.b64encode(secret.encode()).decode()):
            assert encoded not in text


def test_a_text_shows_no_secret_in_any_encoding_and_is_otherwise_unchanged() -> None:
    assert_unreadable(BUILT_IN.clean_text(TEXT)[0])
    assert BUILT_IN.clean_text(TEXT)[0].count("[REDACTED:") >= len(SECRETS) * len(ENCODINGS)
    assert BUILT_IN.clean_text(ORDINARY)[0] == ORDINARY


def test_batches_and_streams_are_masked_like_whole_texts() -> None:
    values: list[Any] = [{"a": [TEXT], TEXT: 1}, {"text": ORDINARY}, *({"text": f"ü {secret}"} for secret in SECRETS)]
    whole = BUILT_IN.clean_text(TEXT)[0]

    assert clean_all(values, BUILT_IN) == [BUILT_IN.clean(value) for value in values]
    assert [changes for _, changes in clean_all(values, BUILT_IN)].count(frozenset()) == 1
    for size in (1, 7, 40):
        stream = Stream(BUILT_IN)
        pieces = [stream.feed(TEXT[at : at + size]) for at in range(0, len(TEXT), size)]
        assert "".join([*pieces, stream.flush()]) == whole


@pytest.mark.django_db
def test_secrets_from_runners_programs_and_files_are_masked() -> None:
    project = make_project("outside")
    halves = [
        {"runId": "r1", "type": "llm.text.delta", "payload": {"text": text}}
        for secret in SECRETS
        for text in (f"it is {secret[:5]}", f"{secret[5:]} here. ")
    ]
    started = {"runId": "r1", "type": "run.started", "payload": {"input": TEXT}}
    failed = {"runId": "r1", "type": "run.failed", "payload": {"errorType": "api_error", "error": TEXT}}
    results = record(Sender(project, "key:test"), [started, *halves, failed])
    assert [result.error for result in results if result.error] == []

    span = {"session.id": "s-1", "event.name": "user_prompt", "event.sequence": 1, "prompt.id": "p-1"}
    body = [{"body": "claude_code.user_prompt", **span, "prompt": TEXT, "prompt_length": "9"}]
    exporter = Exporter(project)
    assert exporter.post(as_json(logs(body, "claude-code")), "/v1/logs", JSON).status_code == 200
    exporter.settle()

    chat = json.dumps([{"role": "user", "content": TEXT}, {"role": "assistant", "content": TEXT}]).encode()
    uploads.store(SYSTEM, project, [Upload("chat.json", io.BytesIO(chat), len(chat))], "")
    assert import_execution.import_next()

    assert FileImport.objects.get().state == ImportState.DONE
    assert AgentRun.objects.count() == 3
    streamed = "".join(row.payload["text"] for row in Event.objects.filter(type="llm.text.delta").order_by("seq"))
    assert streamed.count("[REDACTED:secret:") == len(SECRETS)
    # Messages of a model are stored unmasked; they are masked on export and display.
    assert {table for secret in SECRETS for table, _ in rows_with(secret)} <= {"agent_run_messages"}


@pytest.mark.django_db(transaction=True)
def test_secrets_read_by_a_tool_are_masked(scripted: MakeScripted, tmp_path: Path, settings: Settings) -> None:
    settings.AGENTOPS_TOOL_ROOTS = [str(tmp_path)]
    (tmp_path / "notes.txt").write_text(TEXT)

    def play(call: ModelCall) -> Iterable[Move]:
        if call.number == 1:
            yield ToolCallPart("read_file", {"path": "notes.txt"}, tool_call_id="c1")
        yield "read"

    run = drive(scripted(play, tools=["read_file"], root=str(tmp_path)))

    assert run.status == "completed", run.error_message
    assert {table for secret in SECRETS for table, _ in rows_with(secret)} == set()
