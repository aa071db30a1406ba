"""`agentops sink`: the steps of an operator, from adding a sink to resending a delivery."""

from __future__ import annotations

import io
import json
import logging
from pathlib import Path
from typing import Any

import pytest
from django.core.management import CommandError, call_command
from standardwebhooks.webhooks import Webhook

from runs.management.commands.sink import Command
from runs.models import Sink
from tests.support.factories import make_agent, make_project, make_run
from tests.support.loopback_servers import receiving
from tests.support.project_rows import append, export

pytestmark = pytest.mark.django_db(transaction=True)


def sink(*arguments: str) -> Any:
    out = io.StringIO()
    call_command("sink", *arguments, "--json", stdout=out)
    return json.loads(out.getvalue())


def test_a_sink_can_be_added_tested_and_its_deliveries_resent(settings: Any, tmp_path: Path) -> None:
    settings.AGENTOPS_ALLOW_PRIVATE_SINKS = True
    run = make_run(make_agent(make_project("shop")))
    secrets = tmp_path / "secrets.json"
    secrets.write_text('{"headers": {"X-Key": "k"}}')
    with receiving() as receiver:
        url = f"url={receiver.url}"
        sink(
            "add",
            "shop",
            "http",
            "lake",
            "--option",
            url,
            "--option",
            "batch_size=1",
            "--option",
            "dialect=log",
            "--secrets",
            str(secrets),
        )
        assert sink("test", "shop", "lake")[0]["state"] == "sent"
        assert receiver.received[0].headers["x-key"] == "k"
        receiver.answer(400)
        append(run, "refused")
        export()
        [dead] = sink("deliveries", "shop", "lake", "--state", "dead")
        assert sink("ls", "shop")[0]["dead"] == 1
        assert sink("resend", "shop", "lake", "--delivery", dead["id"]) == {"resent": 1}
        export()
        assert sink("deliveries", "shop", "lake", "--state", "dead") == []
        receiver.answer(500)
        with pytest.raises(CommandError, match="not accepted") as failed:
            sink("test", "shop", "lake")
        assert failed.value.returncode == 1

        made = sink("add", "shop", "webhook", "chat", "--option", url, "--events", "x.note")
        new = sink("rotate", "shop", "chat")["secret"]
        append(run, "hello")
        export(2)
        message = receiver.received[-1]
        for secret in (made["secret"], new):
            Webhook(secret).verify(message.body, message.headers)
    assert sink("disable", "shop", "chat") == {"name": "chat", "is_enabled": False}
    assert sink("rm", "shop", "chat") == {"removed": "chat"}
    assert [row["name"] for row in sink("ls", "shop")] == ["lake"]


@pytest.mark.parametrize(
    ("arguments", "code"),
    [
        (["add", "shop", "carrier-pigeon", "a"], 7),
        (["add", "shop", "http", "a", "--option", "url=http://127.0.0.1/"], 7),
        (["add", "nowhere", "jsonl", "a"], 3),
        (["test", "shop", "nothing"], 3),
        (["add", "shop", "http", "a", "--secrets", "/nowhere.json"], 6),
        (["add", "shop", "http", "a", "--secrets", "/dev/zero"], 6),
    ],
)
def test_an_invalid_sink_has_an_exit_code(arguments: list[str], code: int) -> None:
    make_project("shop")
    with pytest.raises(CommandError) as refused:
        sink(*arguments)
    assert refused.value.returncode == code


DEEP = "[" * 100_000
NOT_STRICT = {
    "deep": DEEP,
    "closed and deep": DEEP + "]" * 100_000,
    "a key twice": '{"a": 1, "a": 2}',
    "no number": '{"a": NaN}',
    "too large a number": '{"a": 1e999}',
}


@pytest.mark.parametrize("case", NOT_STRICT)
def test_json_in_options_and_files_is_strict(case: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """An error is one line with an exit code, as for all input: no traceback, no sink."""
    make_project("shop")
    add = ["add", "shop", "http", "lake"]
    with pytest.raises(SystemExit) as ended:
        Command().run_from_argv(["agentops", "sink", *add, "--option", f"url={NOT_STRICT[case]}"])
    assert ended.value.code == 2
    line = capsys.readouterr().err.splitlines()[-1]
    assert line.startswith("agentops sink add: error: argument --option: url: ")
    assert len(line) < 400
    # The command line hides events of runs, but only while the command is executed.
    assert logging.getLogger("agentops.runs").isEnabledFor(logging.INFO)

    secrets = tmp_path / "secrets.json"
    secrets.write_text(NOT_STRICT[case])
    with pytest.raises(CommandError, match=r"must be a JSON object: [^\n]{,200}$") as refused:
        sink(*add, "--option", "url=https://example.org/", "--secrets", str(secrets))
    assert refused.value.returncode == 7
    assert not Sink.objects.exists()


def test_an_option_is_json_or_plain_text() -> None:
    make_project("shop")
    sink("add", "shop", "http", "lake", "--option", "url=https://example.org/[1", "--option", "batch_size=7")
    assert Sink.objects.get().config == {"url": "https://example.org/[1", "batch_size": 7}
    with pytest.raises(CommandError, match="'nothing' is not NAME=VALUE"):
        sink("add", "shop", "http", "other", "--option", "nothing")
