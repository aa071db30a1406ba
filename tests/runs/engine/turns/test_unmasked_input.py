"""A project that does not mask model input: the model receives the secrets, and no other output contains them."""

from __future__ import annotations

import itertools
from collections.abc import Iterable
from pathlib import Path

import pytest
from pydantic_ai.messages import ToolCallPart
from pytest_django import Settings

from agentops.accounts import redaction_changes
from agentops.accounts.access import SYSTEM
from agentops.accounts.models import AuditEntry, Project
from agentops.accounts.redaction_cache import CACHE
from agentops.base.redaction import project_scope
from agentops.base.redaction.redact import BARE, BUILT_IN, MODEL_INPUT
from runs.actions import run_actions
from runs.external.ingest import Sender, record
from runs.models import Agent, AgentRun, AgentRunMessage
from runs.providers import messages
from runs.providers.base import ModelCall
from tests.support.engine import MakeScripted
from tests.support.factories import drive, make_run
from tests.support.run_checks import check, index_all, rows_with
from tests.support.scripted_model import Move

pytestmark = pytest.mark.django_db(transaction=True)
INSTRUCTED, ASKED, READ, SENT = (f"ghp_{letter}" + "a1B2c3D4e5F6" * 3 for letter in "wxyz")
SECRETS = (INSTRUCTED, ASKED, READ, SENT)
#: Long enough that a preview or a title cuts the secret.
FILLER = "word " * 36


def stop_masking(project: Project) -> None:
    redaction_changes.set_model_input_masking(project, False, actor=SYSTEM)
    CACHE.expire()


def tables_with(secret: str) -> set[str]:
    """Return the tables that contain the secret or its first 12 characters."""
    return {table for table, _ in rows_with(secret[:12])}


@pytest.mark.parametrize("is_masked", [True, False])
def test_a_model_receives_secrets_only_if_masking_is_off(
    scripted: MakeScripted, tmp_path: Path, settings: Settings, is_masked: bool
) -> None:
    settings.AGENTOPS_TOOL_ROOTS = [str(tmp_path)]
    (tmp_path / "notes.txt").write_text(f"token: {READ}\n{FILLER}")
    received: list[str] = []

    def play(call: ModelCall) -> Iterable[Move]:
        received.append(" ".join(messages.canonical(messages.dump(message)) for message in call.history))
        yield "Done."
        if call.number == 1:
            yield ToolCallPart("read_file", {"path": "notes.txt"}, tool_call_id="c1")

    run = scripted(play, tools=["read_file"], root=str(tmp_path))
    assert run.agent is not None
    Agent.objects.filter(pk=run.agent.pk).update(instructions=f"Use {INSTRUCTED}.")
    run.agent.refresh_from_db()
    if not is_masked:
        stop_masking(run.project)
    with project_scope.limited_to(run.project_id):
        run = make_run(run.agent, f"{FILLER}{ASKED}")
        run_actions.send(SYSTEM, run, f"{FILLER * 2}{SENT}")
    run = drive(run)
    index_all()

    assert run.status == "completed", (run.status_reason, run.error_message)
    assert [secret in received[-1] for secret in SECRETS] == [not is_masked] * 4
    rows = {"agent_run_messages"}
    # The definition of an agent is always stored unmasked.
    agents = {"runs_agent", "agent_runs"}
    found = {secret: tables_with(secret) - (agents if secret == INSTRUCTED else set()) for secret in SECRETS}
    if is_masked:
        assert not any(found.values()), found
    else:
        expected = {ASKED: {"agent_runs"}, SENT: {"agent_run_commands"}}
        assert found == {secret: rows | expected.get(secret, set()) for secret in SECRETS}
    assert ASKED[:12] not in run.title + (run.result or "")
    check(run)


def test_an_external_run_stays_masked(scripted: MakeScripted) -> None:
    """Reported conversations are never sent to a model, so they are masked before they are stored."""
    project = scripted(lambda call: ["Done."]).project
    stop_masking(project)
    sent = [
        ("run.started", {"prompt": ASKED}),
        ("message.added", {"role": "user", "content": SENT}),
        ("llm.turn.end", {"text": READ, "toolCalls": [{"id": "c", "name": "f", "arguments": {}}]}),
        ("tool.end", {"callId": "c", "output": READ}),
    ]
    with project_scope.limited_to(project.pk):
        record(Sender(project, "key:a"), [{"runId": "r", "type": type_, "payload": body} for type_, body in sent])

    run = AgentRun.objects.get(external_id="r")
    assert AgentRunMessage.objects.filter(run=run).count() == 4
    assert not any(map(tables_with, SECRETS))


def test_masking_applies_if_any_project_in_scope_masks(scripted: MakeScripted) -> None:
    """It also applies if the scope has no project."""
    project, other = scripted(lambda call: ["Done."]).project, Project.objects.create(slug="other", name="Other")
    stop_masking(project)
    scopes = [(), (project.pk,), (other.pk,), (project.pk, other.pk)]
    kinds = []
    for scope, _ in itertools.product(scopes, range(2)):  # the second time from the cache
        with project_scope.limited_to(*scope):
            kinds.append(MODEL_INPUT.fixed() is BARE)
            assert MODEL_INPUT.clean_text(SENT)[0].startswith("ghp_" if kinds[-1] else "[REDACTED:")
    assert kinds == [False, False, True, True, False, False, False, False]

    redaction_changes.set_model_input_masking(project, True, actor=SYSTEM)
    redaction_changes.set_model_input_masking(project, True, actor=SYSTEM)  # no change, and no entry
    CACHE.expire()
    with project_scope.limited_to(project.pk):
        assert MODEL_INPUT.fixed() is not BARE
        assert MODEL_INPUT.clean_text("plain")[0] == BUILT_IN.clean_text("plain")[0]
    entries = AuditEntry.objects.filter(action="project.changed", project=project).order_by("created_at")
    assert [entry.after for entry in entries] == [{"masks_model_input": False}, {"masks_model_input": True}]
