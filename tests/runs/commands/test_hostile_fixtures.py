"""Malicious fixture files, rows 105 and 106: links out of the folder, compressed files, wrong prompts."""

from __future__ import annotations

import gzip
import json
import tracemalloc
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from pydantic_ai.messages import ModelRequest, UserPromptPart
from pytest_django import Settings

from runs.fixtures import fixture_files
from runs.fixtures.fixture_files import load, parse
from runs.fixtures.playback import check_prompt
from runs.fixtures.text_files import MAX_BYTES, FixtureError
from runs.flows import runner
from runs.models import AgentRun
from runs.providers.base import FixtureExhausted, ModelCall, ProviderUnusable
from runs.providers.base import get as provider_of
from runs.worker.worker import Worker
from tests.support.factories import drive, make_agent, make_project, make_run
from tests.support.flows import make_flow_run, make_writer, run_of


@pytest.fixture
def folder(tmp_path: Path, settings: Settings) -> Iterator[Path]:
    """Create a folder of fixtures, and a private file outside it."""
    folder = tmp_path / "fixtures"
    (folder / "shop").mkdir(parents=True)
    settings.AGENTOPS_FIXTURES = [str(folder)]
    fixture_files.load_named.cache_clear()
    (tmp_path / "private.json").write_text(recording("secret"))
    (folder / "plain.json").write_text(recording("open"))
    yield folder
    fixture_files.load_named.cache_clear()


def call(text: str, prompt: str | None = None, **more: Any) -> dict[str, Any]:
    start = {} if prompt is None else {"prompt": prompt}
    return {"input": start, "output": {"text": text, "usage": {}, "durationMs": 1}, "events": [], **more}


def recording(*texts: str, prompt: str = "Go.") -> str:
    first, *others = texts
    return json.dumps({"calls": [call(first, prompt), *(call(text) for text in others)]})


# --- Links ----------------------------------------------------------------------------------------------------------


def test_links_out_of_the_folder_are_refused(folder: Path) -> None:
    (folder / "linked.json").symlink_to(folder.parent / "private.json")
    (folder / "shop/clerk.json").symlink_to("../../private.json")
    (folder / "outside").symlink_to(folder.parent)
    for name, node in (
        ("linked", ""),
        ("shop/clerk", ""),
        ("shop", "clerk"),
        ("outside/private", ""),
        ("outside", "private"),
    ):
        with pytest.raises(FixtureError) as caught:
            fixture_files.load_named(name, node)
        assert (caught.value.code, "leads out of" in caught.value.message) == ("fixture_unreadable", True), name
    with pytest.raises(ProviderUnusable, match="a link that leads out of"):
        provider_of("fixture").check("linked", {})


def test_links_within_the_folder_are_followed(folder: Path, tmp_path: Path, settings: Settings) -> None:
    (folder / "inside.json").symlink_to("plain.json")
    (folder / "shop/clerk.json").symlink_to("../plain.json")
    assert (
        fixture_files.load_named("inside")
        == fixture_files.load_named("plain")
        == fixture_files.load_named("shop", "clerk")
    )
    # The configured folder may itself be a link.
    (tmp_path / "link").symlink_to(folder)
    settings.AGENTOPS_FIXTURES = [str(tmp_path / "link")]
    fixture_files.load_named.cache_clear()
    assert fixture_files.load_named("plain").answers[0].output.text == "open"


def test_verify_refuses_links_out_of_the_folder(folder: Path, refused: Any) -> None:
    (folder / "shop/clerk.json").symlink_to("../../private.json")
    code, last = refused("verify_fixtures", str(folder))
    assert code == 6
    assert last == f"{folder}/shop/clerk.json: a link that leads out of {folder}"


# --- Compressed files -----------------------------------------------------------------------------------------------


def test_a_compressed_file_is_refused_without_decompression(folder: Path, refused: Any) -> None:
    """A file of 200 KB would expand to 200 MB, more than the limit."""
    bomb = folder / "bomb.json"
    with gzip.open(bomb, "wb") as file:
        for _ in range(200):
            file.write(b" " * 1024 * 1024)
    assert bomb.stat().st_size < 400_000

    tracemalloc.start()
    with pytest.raises(FixtureError) as caught:
        load(bomb)
    _, peak = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert (caught.value.code, caught.value.path) == ("fixture_unreadable", str(bomb))
    assert peak < MAX_BYTES + 1024 * 1024
    for words in (["verify_fixtures", str(bomb)], ["fixture", "convert", str(bomb), "--output", str(folder / "out")]):
        assert refused(*words) == (6, f"{bomb}: compressed with gzip: decompress it first")


# --- Prompts --------------------------------------------------------------------------------------------------------


def test_a_prompt_that_contradicts_the_previous_user_turn_is_refused(folder: Path, refused: Any) -> None:
    fitting = {"calls": [call("a", "Go.", user="And now?"), call("b", "And now?")]}
    assert len(parse(json.dumps(fitting)).answers) == 2
    file = folder / "other.json"
    file.write_text(json.dumps({"calls": [call("a", "Go.", user="And now?"), call("b", "Something else")]}))

    code, last = refused("verify_fixtures", str(file))
    assert code == 7
    assert last == f"{file}: $.calls[1].input.prompt: is not the user turn that follows the call before (user)"


@pytest.mark.django_db(transaction=True)
@pytest.mark.parametrize(("prompt", "status"), [("Go.", "completed"), ("Stop.", "paused")])
def test_a_run_with_a_wrong_prompt_has_no_fixture_if_its_agent_checks_prompts(
    folder: Path, prompt: str, status: str
) -> None:
    run = played("plain", prompt, check_prompt=True)
    assert run.status == status
    if status == "paused":
        assert (run.status_reason, run.error_type) == ("fixture_exhausted", "fixture_exhausted")
        assert run.error_message == (
            f"No fixture for {run.agent_config['agent_id']} call 0: the prompt is not the recorded one, "
            "$.calls[0].input.prompt"
        )
    assert played("plain", prompt).status == "completed"


@pytest.mark.django_db(transaction=True)
def test_later_turns_are_checked_and_calls_after_tools_are_not(folder: Path) -> None:
    asks = {"type": "tool_call", "callId": "c1", "toolName": "look", "args": {}, "atMs": 1}
    calls = [call("", "Go.", events=[asks], tools={"c1": {"output": "seen"}}), call("a", user="And now?"), call("b")]
    (folder / "turns.json").write_text(json.dumps({"calls": calls}))
    assert played("turns", "Go.", check_prompt=True).status == "completed"


@pytest.mark.django_db(transaction=True)
def test_the_prompts_of_a_flow_are_checked_against_the_plain_form(folder: Path, worker: Worker) -> None:
    """Each call belongs to a visit of the node; the second visit has a different prompt from the recording."""
    plain = [{"input": {"prompt": f"Write {n}", "options": {}}, "output": {"text": f"text {n}"}} for n in (1, 2)]
    (folder / "writer.json").write_text(json.dumps({"calls": plain}))
    project = make_project()
    make_writer(project, settings={"check_prompt": True})
    definition = {
        "nodes": [
            {"id": "first", "type": "agent", "agent": "writer", "prompt": "Write 1"},
            {"id": "second", "type": "agent", "agent": "writer", "prompt": "Write 9"},
        ],
        "edges": [{"from": "first", "to": "second"}],
    }
    flow_run = make_flow_run(definition, project)
    for key in ("first", "second"):
        runner.advance(flow_run.pk)
        drive(run_of(flow_run, key), worker)
    assert run_of(flow_run, "first").status == "completed"
    second = run_of(flow_run, "second")
    assert (second.status, second.status_reason) == ("paused", "fixture_exhausted")
    assert second.error_message.startswith("No fixture for second call 0: the prompt is not the recorded one")


@pytest.mark.django_db(transaction=True)
def test_a_wrong_prompt_is_named_by_its_call_in_the_plain_file(folder: Path) -> None:
    """The first call of the file is played as two model calls, so the numbers of calls differ."""
    types = (("agent:tool", {"toolName": "look", "toolOutput": "seen"}), ("agent:text", {"content": "Done."}))
    turn = {"events": [{"type": type_, **fields} for type_, fields in types], "output": {"text": "Done."}}
    calls = [
        {"input": {"prompt": "Go.", "options": {}}, **turn},
        {"input": {"prompt": "Next."}, "output": {"text": "b"}},
    ]
    (folder / "two-turns.json").write_text(json.dumps({"calls": calls}))
    fixture = load(folder / "two-turns.json")
    assert len(fixture.answers) == 3

    history = [ModelRequest(parts=[UserPromptPart("Something else")])]
    for number, place in ((1, 0), (3, 1)):
        with pytest.raises(FixtureExhausted) as caught:
            check_prompt(fixture, ModelCall("two-turns", "agent", number, history))
        reason = f"the prompt is not the recorded one, $.calls[{place}].input.prompt"
        assert str(caught.value) == f"No fixture for agent call {place}: {reason}"
    check_prompt(fixture, ModelCall("two-turns", "agent", 2, history))


def test_check_prompt_must_be_a_boolean(folder: Path) -> None:
    with pytest.raises(ProviderUnusable, match=r"settings\.check_prompt must be true or false"):
        provider_of("fixture").check("plain", {"check_prompt": "yes"})


def played(name: str, prompt: str, **settings: Any) -> AgentRun:
    return drive(make_run(make_agent(fixture=name, settings=settings), prompt))
