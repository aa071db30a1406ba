"""The requests of docs/guides/remote.md, in the order of the page, have the answers that the page shows."""

from __future__ import annotations

import json
import re
import shlex
from collections.abc import Iterator
from pathlib import Path
from typing import Any, NamedTuple

import pytest
from django.test import Client

from agentops.accounts.models import Project
from runs.api.docs import document
from runs.lifecycle import approval_decisions, creation
from runs.lifecycle.approval_decisions import Decision
from runs.models import Agent, AgentRun, Approval
from tests.support.factories import make_project, with_key

ROOT = Path(__file__).resolve().parents[3]
GUIDE = (ROOT / "docs/guides/remote.md").read_text(encoding="utf-8")
BLOCK = re.compile(r"^```(?P<language>\w+)\n(?P<text>.*?)^```", re.MULTILINE | re.DOTALL)
#: The run of the page.
RUN = re.search(r"^run=(\S+)$", GUIDE, re.MULTILINE)


class Exchange(NamedTuple):
    """A request with curl, and the answer after it; None if the page shows none."""

    command: str
    answer: Any


def exchanges() -> Iterator[Exchange]:
    blocks = [(block["language"], block["text"]) for block in BLOCK.finditer(GUIDE)]
    for (language, text), (next_language, answer) in zip(blocks, [*blocks[1:], ("", "")], strict=True):
        if language == "sh" and "curl" in text:
            yield Exchange(text[text.index("curl") :], json.loads(answer) if next_language == "json" else None)


def send(command: str, run: AgentRun, project: Project) -> Any:
    """Send the request of a curl command, with a key of the scope that the page names."""
    words = shlex.split(command.replace("'$run'", str(run.pk)).replace("$run", str(run.pk)))
    is_signal = "AGENTOPS_API_KEY" in command
    headers = with_key(project, "write" if is_signal else "work")
    path = words[-1].removeprefix("$site")
    body = words[words.index("-d") + 1]
    response = Client().post(path, body, content_type="application/json", headers=headers)
    assert response.status_code < 300, (path, response.content)
    return json.loads(response.content)


def decide(run: AgentRun) -> None:
    """Approve the call that the run waits for, and let the process claim it again to complete it."""
    call = Approval.objects.get(run=run).call
    approval_decisions.decide(run.pk, call.pk, Decision(approves=True), by="oscar")


def assert_shown(shown: Any, answer: Any) -> None:
    """Assert that an answer has the fields on the page. It may have more fields of an object."""
    if isinstance(shown, dict):
        assert shown.keys() <= answer.keys(), answer
        for name in shown:
            assert_shown(shown[name], answer[name])
    elif isinstance(shown, list):
        assert len(shown) == len(answer), answer
        for one, other in zip(shown, answer, strict=True):
            assert_shown(one, other)
    else:
        assert shown == answer


@pytest.mark.django_db(transaction=True)
def test_the_requests_of_the_guide() -> None:
    project = make_project("demo")
    documented = list(exchanges())
    assert [each.command.rsplit("/", 1)[1].strip(' "\n') for each in documented] == [
        *("agents", "claim", "steps", "steps", "steps", "signals", "heartbeat", "release")
    ]
    assert RUN is not None
    run = AgentRun()
    for each in documented:
        if each.command.endswith('release"\n'):
            decide(run)
            send(documented[1].command, run, project)
        answer = send(each.command, run, project)
        if each.command.endswith('agents"\n'):
            agent = Agent.objects.get(project=project, slug="nightly")
            run = creation.create(project, agent, "Pay the invoices", by="test")
        if each.answer is not None:
            assert_shown(json.loads(json.dumps(each.answer).replace(RUN[1], str(run.pk))), answer)
    run.refresh_from_db()
    assert (run.status, run.summary) == ("completed", "One invoice is paid.")


def undescribed(schema: Any, at: str) -> Iterator[str]:
    """Yield the fields of a body without a description."""
    for name, field in schema.get("properties", {}).items():
        if "description" not in field:
            yield f"{at}/{name}"
    for key, value in schema.items():
        for each in value if isinstance(value, list) else [value]:
            if isinstance(each, dict):
                yield from undescribed(each, f"{at}/{key}")


def test_every_field_of_a_request_is_described() -> None:
    paths = {path: verbs for path, verbs in json.loads(document())["paths"].items() if path.startswith("/api/work/")}
    bodies = {path: verbs["post"]["requestBody"] for path, verbs in paths.items() if "post" in verbs}

    assert len(paths) == 10
    assert [each for path, body in bodies.items() for each in undescribed(body, path)] == []
