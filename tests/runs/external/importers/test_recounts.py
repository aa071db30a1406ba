"""Imports equal a second, simple count of the files: messages, calls, tokens and costs."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from decimal import Decimal
from pathlib import Path
from typing import Any
from zipfile import ZipFile

import pytest

from agentops.accounts.models import Project
from agentops.base.redaction.redact import DEFAULT as REDACTOR
from runs.external.import_runs import import_file
from runs.external.importers.base import ImportFile
from runs.external.importers.formats import find
from runs.models import AgentRun
from tests.support.machine import shared_directory
from tests.support.recordings import recordings

pytestmark = pytest.mark.django_db

#: Of a run: messages as (role, text), tool calls as (name, has failed), input tokens, output tokens, and dollars.
Count = tuple[list[tuple[str, str]], list[tuple[str, bool]], int, int, Decimal]
ROLES = {"tool": "tool_result", "agent": "assistant", "developer": "system"}


def text_of(content: Any) -> str:
    if isinstance(content, list):
        return "\n".join(text_of(item) for item in content)
    if isinstance(content, dict):
        return content["text"] if content["type"] == "text" else "[image]"
    return content or ""


def chat(messages: list[dict[str, Any]]) -> tuple[list[tuple[str, str]], list[tuple[str, bool]]]:
    turns = [(ROLES.get(m["role"], m["role"]), text_of(m["content"])) for m in messages]
    results = {m["tool_call_id"]: bool(m.get("error")) for m in messages if "tool_call_id" in m}
    functions = [(call["id"], call["function"]) for m in messages for call in m.get("tool_calls") or []]
    names = [(id_, name["name"] if isinstance(name, dict) else name) for id_, name in functions]
    return turns, [(name, results.get(id_, False)) for id_, name in names]


def money(*amounts: Any) -> Decimal:
    return round(sum((Decimal(str(amount or 0)) for amount in amounts), Decimal(0)), 8)


def atif(path: Path) -> Iterator[Count]:
    document = json.loads(path.read_bytes())
    turns, calls = [], []
    for step in document["steps"]:
        turns.append((ROLES.get(step["source"], step["source"]), step["message"]))
        turns += [("tool_result", result["content"]) for result in step.get("observation", {}).get("results", [])]
        calls += [(call["function_name"], False) for call in step.get("tool_calls", [])]
    yield turns, calls, 0, 0, money(document["final_metrics"]["total_cost_usd"])


def tau_bench(path: Path) -> Iterator[Count]:
    for record in json.loads(path.read_bytes()):
        yield *chat(record["traj"]), 0, 0, money()


def swe_agent(path: Path) -> Iterator[Count]:
    document = json.loads(path.read_bytes())
    stats = document.get("info", {}).get("model_stats", {})
    tokens = stats.get("tokens_sent", 0), stats.get("tokens_received", 0)
    turns, *others = chat(document["history"])
    # Steps that are only in the trajectory, which version 1.0 does not add to its history.
    later = document.get("trajectory", [])[sum(role == "assistant" for role, _ in turns) :]
    for step in later:
        turns += [("assistant", f"{step['response']}\n\n{step['action']}"), ("user", step["observation"])]
    yield turns, *others, *tokens, money(stats.get("instance_cost"))


def mini_swe_agent(path: Path) -> Iterator[Count]:
    document = json.loads(path.read_bytes())
    messages = document if isinstance(document, list) else document["messages"]
    usages = [m["extra"]["response"]["usage"] for m in messages if "extra" in m]
    sent, received = sum(u["prompt_tokens"] for u in usages), sum(u["completion_tokens"] for u in usages)
    cost = document["info"]["model_stats"]["instance_cost"] if isinstance(document, dict) else 0
    yield *chat(messages), sent, received, money(cost)


def openhands(path: Path) -> Iterator[Count]:
    lines = path.read_text().splitlines() if path.suffix == ".jsonl" else [path.read_text()]
    for document in map(json.loads, lines):
        events = document if isinstance(document, list) else document["history"]
        turns: list[tuple[str, str]] = []
        calls, usages = [], []
        for event in events:
            response = event.get("tool_call_metadata", {}).get("model_response")
            arguments = event.get("args", event)
            if "observation" in event:
                turns.append(("tool_result", event["content"]))
            elif response:
                message = response["choices"][0]["message"]
                turns.append(("assistant", message["content"] or ""))
                calls += [(call["function"]["name"], False) for call in message["tool_calls"]]
                usages.append(response["usage"])
                turns += [("tool_result", "")] if event["action"] == "finish" else []
            elif event["action"] == "message":
                turns.append((ROLES.get(event.get("source", "user"), "user"), arguments["content"]))
            else:
                turns.append(("assistant", arguments["thought"]))
                calls += [(event["action"], False)] if event["action"] != "finish" else []
        sent, received = sum(u["prompt_tokens"] for u in usages), sum(u["completion_tokens"] for u in usages)
        cost = document["metrics"]["accumulated_cost"] if isinstance(document, dict) else None
        yield turns, calls, sent, received, money(cost)


def inspect(path: Path) -> Iterator[Count]:
    if path.suffix == ".eval":
        with ZipFile(path) as archive:
            names = sorted(name for name in archive.namelist() if name.startswith("samples/"))
            samples = [json.loads(archive.read(name)) for name in names]
    else:
        samples = json.loads(path.read_bytes())["samples"]
    for sample in samples:
        usage = list(sample.get("model_usage", {}).values())
        turns, calls = chat(sample["messages"])
        if turns[0][0] == "tool_result":  # a truncated sample: add the missing call before each result
            turns = [turn for result in turns for turn in (("assistant", ""), result)]
            calls = [(message["function"], True) for message in sample["messages"]]
        yield turns, calls, sum(u["input_tokens"] for u in usage), sum(u["output_tokens"] for u in usage), money()


def langfuse(path: Path) -> Iterator[Count]:
    observations = json.loads(path.read_bytes())["observations"]
    generations = [one for one in observations if one["type"] == "GENERATION"]
    outer = {one["parentObservationId"] for one in generations}
    leaves = [one for one in generations if one["id"] not in outer]
    tools = sorted(
        (one for one in observations if one["type"] == "TOOL" or "tool.name" in one["metadata"].get("attributes", {})),
        key=lambda one: one["startTime"],
    )
    names = [one["name"].removeprefix("running tool: ").removeprefix("execute_tool ") for one in tools]
    sent, received = (sum(one["usageDetails"][name] for one in leaves) for name in ("input", "output"))
    yield [], [(name, False) for name in names], sent, received, money(*(one["totalCost"] for one in leaves))


def stored(run: AgentRun) -> Count:
    turns = []
    for message in run.messages.order_by("position"):
        spoken = [part for part in message.content["parts"] if part["part_kind"] not in ("tool-call", "thinking")]
        contents = [item for part in spoken for item in _items(part["content"])]
        turns.append((message.role, "\n".join(item if isinstance(item, str) else "[image]" for item in contents)))
    calls = [(call.tool_name, call.status == "error") for call in run.tool_calls.order_by("step_number", "id")]
    return turns, calls, run.input_tokens, run.output_tokens, run.cost_usd or Decimal(0)


def _items(content: Any) -> list[Any]:
    return content if isinstance(content, list) else [content]


RECOUNTS: dict[str, Callable[[Path], Iterator[Count]]] = {
    "atif": atif,
    "tau-bench": tau_bench,
    "swe-agent": swe_agent,
    "mini-swe-agent": mini_swe_agent,
    "openhands": openhands,
    "inspect": inspect,
    "langfuse-traces": langfuse,
}


def counted_files(folder: str) -> list[Path]:
    return [path for path in recordings(folder) if "subagent_loop" not in path.name]


@pytest.mark.parametrize(
    "folder", [pytest.param(name, marks=[pytest.mark.slow] if name == "tau-bench" else []) for name in RECOUNTS]
)
def test_an_imported_file_equals_its_recount(folder: str) -> None:
    project = Project.objects.create(slug="recounted", name="Recounted")
    for path in counted_files(folder):
        check_recount(project, path)


def check_recount(project: Project, path: Path) -> None:
    file = ImportFile.open(path)

    runs = import_file(project, file, find(file), by="test").runs

    expected = list(RECOUNTS[path.parent.name](path))
    assert len(runs) == len(expected), path
    for run, (turns, calls, sent, received, cost) in zip(runs, expected, strict=True):
        run.refresh_from_db()
        found_turns, found_calls, *found = stored(run)
        if path.parent.name == "langfuse-traces":
            # The messages of a trace come from its calls; test_formats_of_finished_runs.py checks them.
            found_calls = [call for call in found_calls if call[0] != "final_result"]
        else:
            assert found_turns == [(role, REDACTOR.clean_text(text)[0]) for role, text in turns]
        assert found_calls == calls, path
        assert found[:2] == [sent, received]
        # If no file reports a cost, it is computed from the published prices.
        assert found[2] == cost or run.cost_source == AgentRun.CostSource.COMPUTED


def test_recorded_files_exist() -> None:
    shared_directory()
    assert sum(len(counted_files(folder)) for folder in RECOUNTS) == 29
