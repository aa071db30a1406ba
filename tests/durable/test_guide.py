"""The examples of docs/guides/durable.md and docs/examples/durable, on a running site."""

from __future__ import annotations

import os
import re
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator
from typing import Any

import httpx
import pytest

from agentops.client import Client
from agentops.durable import DurableFunction
from runs.models import AgentRun
from runs.statuses import RunStatus
from tests.support.durable import DurableSite
from tests.support.machine import ROOT

GUIDE = ROOT / "docs/guides/durable.md"
EXAMPLES = ROOT / "docs/examples/durable"
WAITING = RunStatus.WAITING


def blocks() -> Iterator[str]:
    """Yield the Python examples, without the line that starts the process."""
    for block in re.findall(r"^```python\n(.*?)^```", GUIDE.read_text(encoding="utf-8"), re.MULTILINE | re.DOTALL):
        yield block.partition("\nserve_forever(")[0]


class Person:
    """Answers the questions and requests of the examples."""

    def __init__(self, site: DurableSite, client: Client) -> None:
        self.site = site
        self.client = client

    def approve(self, run: AgentRun) -> None:
        self.site.reaches(run, WAITING, reason="approval")
        [approval] = self.client.approvals(run_id=str(run.pk), kind="approval", state="pending")
        self.client.approve(run.pk, approval.call_id)

    def pay(self, run: AgentRun) -> None:
        self.site.reaches(run, WAITING, reason="input")
        self.client.reply(run.pk, "CHF")
        url = f"{self.site.site.url}/api/projects/{self.site.site.project.slug}/agent-runs/{run.pk}/signals"
        headers = {"Authorization": f"Bearer {self.site.site.key('write')}"}
        body = {"name": "paid", "payload": {"amount": 12}, "key": "payment-17"}
        assert httpx.post(url, json=body, headers=headers).is_success

    def nothing(self, run: AgentRun) -> None:
        pass


#: Each agent of the guide, its prompt, the action of a person, and the result of its run.
EXPECTED: dict[str, tuple[str, Callable[[Person, AgentRun], None], str]] = {
    "nightly": ("Three more words", Person.approve, "charged 3 cents"),
    "pages": ("Go.", Person.nothing, "42"),
    "transfers": ("5000", Person.nothing, "PermissionError: too much"),
    "orders": ("Go.", Person.pay, "receipt of 12 CHF"),
    "desk": ("Refund order 17.", Person.approve, "Done: 500 cents refunded"),
    "reports": ("Go.", Person.approve, "sent 6"),
    "greeting": ("ada", Person.nothing, "Good morning Ada"),
    "patients": ("Go.", Person.nothing, "3"),
}


@pytest.fixture
def person(durable_site: DurableSite) -> Iterator[Person]:
    with Client(durable_site.site.url, durable_site.site.key("read", "write")) as client:
        yield Person(durable_site, client)


def test_examples_of_the_guide(durable_site: DurableSite, person: Person) -> None:
    functions: list[DurableFunction] = []
    for block in blocks():
        names: dict[str, Any] = {}
        exec(block, names)
        functions += [value for value in names.values() if isinstance(value, DurableFunction)]
    codec = names["Base64"]()

    assert {function.name for function in functions} == EXPECTED.keys() | {"receipts"}
    with durable_site.serving(*functions, codec=codec):
        durable_site.has_version("greeting", 2)
        runs = {name: durable_site.start(name, prompt) for name, (prompt, _, _) in EXPECTED.items()}
        for name, (_, act, _) in EXPECTED.items():
            act(person, runs[name])
        results = {name: durable_site.completes(run).result for name, run in runs.items()}

    assert results == {name: result for name, (_, _, result) in EXPECTED.items()}


def test_the_research_desk(durable_site: DurableSite, person: Person) -> None:
    """The example as a program: it ends by SIGTERM with exit code 0."""
    env = {
        "PATH": os.environ["PATH"],
        "PYTHONPATH": str(ROOT),
        "AGENTOPS_URL": durable_site.site.url,
        "AGENTOPS_API_KEY": durable_site.site.key("work"),
    }
    command = [sys.executable, str(EXAMPLES / "research_desk.py")]
    process = subprocess.Popen(command, env=env, stderr=subprocess.PIPE, text=True)
    try:
        run = durable_site.start("research-desk", "tides")
        person.approve(run)
        durable_site.completes(run)
    finally:
        process.send_signal(signal.SIGTERM)
        _, errors = process.communicate(timeout=40)

    assert run.result == "The result: published 25 characters (1 numbers)"
    assert (process.returncode, errors) == (0, "")
    assert AgentRun.objects.get(parent_run=run).result == "1 numbers"


def test_every_example_is_run() -> None:
    assert [path.stem for path in EXAMPLES.glob("*.py")] == ["research_desk"]
