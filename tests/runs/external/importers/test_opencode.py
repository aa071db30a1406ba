"""Sessions that `opencode export` writes, as runs."""

from __future__ import annotations

from typing import Any

import pytest

from runs.external.importers.base import ImportRefused
from runs.models import AgentRun
from tests.support.recordings import import_content
from timeline.models import Event

pytestmark = pytest.mark.django_db
BEGIN = 1_795_000_000_000
SESSION = {
    "id": "ses_1",
    "projectID": "global",
    "directory": "/home/user/app",
    "title": "Fix the parser",
    "version": "1.1.36",
    "time": {"created": BEGIN, "updated": BEGIN + 9000},
}
PIXEL = "iVBORw0KGgo="


def part(kind: str, **fields: Any) -> dict[str, Any]:
    return {"id": f"prt_{kind}", "sessionID": "ses_1", "messageID": "msg", "type": kind, **fields}


def tool(call_id: str, name: str, status: str = "completed", **state: Any) -> dict[str, Any]:
    times = {"time": {"start": BEGIN + 2000, "end": BEGIN + 3000}}
    return part("tool", callID=call_id, tool=name, state={"status": status, **times, **state})


def finish(cost: float = 0.01, **tokens: Any) -> dict[str, Any]:
    counted = {"input": 100, "output": 20, "reasoning": 5, "cache": {"read": 800, "write": 50}, **tokens}
    return part("step-finish", reason="stop", cost=cost, tokens=counted)


def user(text: str = "Fix it", *parts: dict[str, Any]) -> dict[str, Any]:
    info = {"id": "msg_1", "sessionID": "ses_1", "role": "user", "time": {"created": BEGIN}, "agent": "build"}
    return {"info": info, "parts": [part("text", text=text), *parts]}


def assistant(*parts: dict[str, Any], number: int = 2, **info: Any) -> dict[str, Any]:
    times = {"created": BEGIN + 1000, "completed": BEGIN + 5000}
    common = {"sessionID": "ses_1", "role": "assistant", "modelID": "claude-haiku-4-5", "providerID": "anthropic"}
    return {"info": {"id": f"msg_{number}", "time": times, "mode": "build", **common, **info}, "parts": list(parts)}


def session(*messages: dict[str, Any], **info: Any) -> dict[str, Any]:
    return {"info": {**SESSION, **info}, "messages": list(messages), "todos": []}


ANSWER = [
    part("step-start"),
    part("reasoning", text="Where is it?"),
    part("text", text="I look."),
    tool("call_1", "read", input={"filePath": "a.py"}, output="x = 1"),
    tool("call_2", "bash", status="error", input={"command": "ls"}, error="exit 1"),
    finish(total=975),
]


def messages(run: AgentRun) -> list[tuple[str, list[Any]]]:
    rows = run.messages.order_by("position")
    return [(row.role, [one.get("content", one.get("tool_name")) for one in row.content["parts"]]) for row in rows]


def test_a_session_is_a_run() -> None:
    attached = part("file", mime="text/plain", url="file:///a.py", filename="a.py")
    more = [part("text", text="not sent", ignored=True), attached]
    last = assistant(part("step-start"), part("text", text="Done."), finish(0.02), number=3)
    [run] = import_content(session(user("Fix it", *more), assistant(*ANSWER), last))

    assert messages(run) == [
        ("user", ["Fix it\na.py"]),
        ("assistant", ["Where is it?", "I look.", "read", "bash"]),
        ("tool_result", ["x = 1"]),
        ("tool_result", ["exit 1"]),
        ("assistant", ["Done."]),
    ]
    assert (run.title, run.status, run.session_id, run.labels) == ("Fix the parser", "waiting", "ses_1", ["folder:app"])
    assert (run.agent_config["agent_id"], run.agent_config["model"]) == ("opencode", "claude-haiku-4-5")
    # Since version 1.2 or so, reasoning is counted beside the output; the total says so.
    assert (run.input_tokens, run.cache_read_tokens, run.cache_write_tokens) == (1900, 1600, 100)
    assert (run.output_tokens, run.reasoning_tokens, str(run.cost_usd)) == (25 + 20, 10, "0.03000000")
    calls = run.tool_calls.order_by("call_id").values_list("tool_name", "status", "duration_ms")
    assert list(calls) == [("read", "completed", 1000), ("bash", "error", 1000)]


def test_a_longer_export_adds_what_is_new() -> None:
    open_call = tool("call_1", "read", status="running", input={"filePath": "a.py"})
    incomplete = assistant(part("step-start"), part("text", text="Do"), number=3, time={"created": BEGIN})
    [run] = import_content(session(user(), assistant(part("text", text="I look."), open_call), incomplete))
    assert messages(run)[1:] == [("assistant", ["I look.", "read"])]

    done = [part("text", text="I look."), tool("call_1", "read", input={"filePath": "a.py"}, output="x = 1")]
    whole = session(user(), assistant(*done), assistant(part("text", text="Done."), number=3))
    [again] = import_content(whole)
    assert again == run
    assert messages(run)[2:] == [("tool_result", ["x = 1"]), ("assistant", ["Done."])]
    before = Event.objects.count()
    import_content(whole)
    assert Event.objects.count() == before


def test_a_sub_agent_is_a_child_run() -> None:
    task = tool("call_1", "task", input={"subagent_type": "explore"}, output="found", metadata={"sessionId": "ses_2"})
    [parent] = import_content(session(user(), assistant(task)))
    answer = assistant(part("text", text="found"), mode="explore")
    [run] = import_content(session(user("Explore"), answer, id="ses_2", parentID="ses_1"))

    assert (run.parent_run, run.agent_config["agent_id"]) == (parent, "explore")
    assert parent.tool_calls.get().child_run == run
    started = Event.objects.get(log=parent.pk, type="child_run.started")
    assert started.payload == {"run_id": "opencode:ses_2", "agent": "explore", "call_id": "call_1"}


def test_steps_errors_pictures_and_unknown_parts() -> None:
    overloaded = {"name": "APIError", "data": {"message": "overloaded"}}
    retry = part("retry", attempt=1, error=overloaded, time={"created": BEGIN})
    steps = [
        *(part("step-start"), part("text", text="One."), finish(0.01)),
        *(part("step-start"), retry, part("hologram", text="?"), finish(0)),
    ]
    picture = part("file", mime="image/png", url=f"data:image/png;base64,{PIXEL}")
    failed = assistant(number=3, error={"name": "MessageAbortedError", "data": {"message": "aborted"}})
    [run] = import_content(session(user("See", picture), assistant(*steps), failed))

    contents = [row.content["parts"] for row in run.messages.order_by("position")]
    assert [type(one).__name__ for one in contents[0][0]["content"]] == ["str", "dict"]
    assert contents[1][0]["content"] == "One."
    assert contents[2][0]["content"].startswith("[Unknown block: hologram]\n{")
    assert list(run.errors.order_by("pk").values_list("error_type", "message")) == [
        ("APIError", "overloaded"),
        ("MessageAbortedError", "aborted"),
    ]
    # A cost of 0 is a subscription, or a model without a price.
    assert run.step_count == 2
    assert run.cost_usd > 0.01


def test_a_session_without_a_title_gets_its_prompt() -> None:
    [run] = import_content(session(user("Hello\nthere"), title="New session - 2026-11-29T01:02:03.456Z"))

    assert run.title == "Hello"


@pytest.mark.parametrize("info", [{"time": {"created": "yesterday"}}, {"time": {"created": 10**18}}])
def test_an_invalid_time_refuses_the_session(info: dict[str, Any]) -> None:
    with pytest.raises(ImportRefused, match="must be a time in milliseconds"):
        import_content(session(user(), **info))


@pytest.mark.parametrize("kind", [[], {}, None, 1])
def test_a_part_of_an_unexpected_type_keeps_its_text(kind: Any) -> None:
    [run] = import_content(session(user(), assistant(part("text", text="Done."), {"id": "p", "type": kind})))

    assert messages(run)[1][1][1].startswith("[Unknown block: ")
