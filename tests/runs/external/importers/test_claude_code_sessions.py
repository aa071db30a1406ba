"""Sessions of Claude Code as runs: recorded and hand-made ones."""

from __future__ import annotations

import json
from base64 import b64encode, urlsafe_b64decode
from pathlib import Path
from typing import Any

import pytest

from agentops.accounts.models import Project
from runs.external.importers.base import ImportRefused
from runs.models import AgentRun
from tests.support.recordings import check_run, content_of, counts, import_path, recording, tokens_of

pytestmark = pytest.mark.django_db

#: Tool calls, tool errors and calls without a result, from the table in shared/data/README.md.
SESSIONS = {
    "claude-code-growing/768de5d6.0.jsonl": (2, 0, 0),
    "claude-code-growing/768de5d6.1.jsonl": (16, 2, 0),
    "claude-code-growing/768de5d6.2.jsonl": (22, 2, 0),
    "claude-code-growing/768de5d6.3.jsonl": (25, 2, 0),
    "claude-code-synthetic/session_b.jsonl": (0, 0, 0),
    "claude-code/04-0b015eb1c2-0.jsonl": (9, 2, 0),
    "claude-code/28-a8bc758709-0.jsonl": (9, 2, 0),
    "claude-code/4c-02af2759b6-0.jsonl": (1, 0, 1),
    "claude-code/51-0c10bf7b7a-0.jsonl": (22, 0, 0),
    "claude-code/5c-1039ad85f4-0.jsonl": (10, 2, 0),
    "claude-code/68-e0ff0d6706-0.jsonl": (5, 0, 0),
    "claude-code/7e-d4051c8a85-0.jsonl": (27, 5, 0),
    "claude-code/89-7eb280e769-13.jsonl": (30, 1, 0),
    "claude-code/ac-3f02a3c337-0.jsonl": (8, 1, 0),
    "claude-code/ad-a8171575ce-0.jsonl": (58, 1, 0),
    "claude-code/b0-be9accda39-0.jsonl": (3, 1, 0),
    "claude-code/b6-f735fbac66-0.jsonl": (224, 2, 0),
    "claude-code/dc-49cb8a2a42-0.jsonl": (4, 0, 0),
}


@pytest.fixture
def project() -> Project:
    return Project.objects.create(slug="sessions", name="Sessions")


def data(name: str) -> Path:
    return recording(name)


def recount(path: Path) -> tuple[int, tuple[int, ...]]:
    """Count messages and tokens from the lines: each message ID once, with the usage of its last line."""
    usages, messages = {}, 0
    for line in map(json.loads, path.read_text().splitlines()):
        if line["type"] == "assistant":
            usages[line["message"]["id"]] = line["message"]["usage"]
        elif line["type"] == "user":
            blocks = line["message"]["content"]
            results = 0 if isinstance(blocks, str) else sum(block["type"] == "tool_result" for block in blocks)
            messages += results or 1
    read = sum(usage["cache_read_input_tokens"] for usage in usages.values())
    written = sum(usage["cache_creation_input_tokens"] for usage in usages.values())
    fresh, output = (sum(usage[name] for usage in usages.values()) for name in ("input_tokens", "output_tokens"))
    return messages + len(usages), (fresh + read + written, output, read, written)


#: The largest ones.
LARGE = {"claude-code/ad-a8171575ce-0.jsonl", "claude-code/b6-f735fbac66-0.jsonl"}


@pytest.mark.parametrize(
    "name", [pytest.param(name, marks=[pytest.mark.slow] if name in LARGE else []) for name in SESSIONS]
)
def test_a_session_is_imported_completely_and_once(project: Project, name: str) -> None:
    report = import_path(project, data(name))
    run = report.runs[0]

    calls, errors, dangling = SESSIONS[name]
    statuses = list(run.tool_calls.values_list("status", flat=True))
    assert (len(statuses), statuses.count("error"), statuses.count("unknown")) == (calls, errors, dangling)
    assert (run.messages.count(), tokens_of(run)) == recount(data(name))
    assert run.agent_config["model"].startswith("claude-")
    assert (run.status, run.status_reason) == ("waiting", "unknown_tool" if dangling else "input")

    before = counts(project)
    again = import_path(project, data(name))
    assert (again.new_runs, again.events, counts(project)) == (0, 0, before)


def test_importing_a_growing_session_in_parts_equals_a_single_import(project: Project) -> None:
    for part in range(4):
        report = import_path(project, data(f"claude-code-growing/768de5d6.{part}.jsonl"))
        assert report.new_runs == (part == 0)
    other = Project.objects.create(slug="whole", name="Whole")
    whole = import_path(other, data("claude-code-growing/768de5d6.3.jsonl"))

    assert content_of(report.runs[0]) == content_of(whole.runs[0])
    before = counts(project)
    import_path(project, data("claude-code-growing/768de5d6.1.jsonl"))
    assert counts(project) == before


@pytest.mark.slow
def test_a_file_cut_at_any_line_loses_and_repeats_nothing(project: Project, tmp_path: Path) -> None:
    """Each line is imported separately, including lines of an answer with parallel calls."""
    lines = data("claude-code/5c-1039ad85f4-0.jsonl").read_bytes().splitlines(keepends=True)
    growing = tmp_path / "growing.jsonl"
    for count in range(12, len(lines) + 1):
        growing.write_bytes(b"".join(lines[:count]))
        run = import_path(project, growing).runs[0]
    whole = Project.objects.create(slug="whole", name="Whole")
    expected = import_path(whole, growing).runs[0]

    assert tokens_of(run) == tokens_of(expected)
    assert parts_of(run) == parts_of(expected)
    assert content_of(run)["calls"] == content_of(expected)["calls"]
    before = counts(project)
    for count in (14, 17, 20, len(lines)):
        growing.write_bytes(b"".join(lines[:count]))
        import_path(project, growing)
    assert counts(project) == before


def parts_of(run: AgentRun) -> list[str]:
    parts = [part for row in run.messages.all() for part in row.content["parts"]]
    return sorted(json.dumps({k: v for k, v in part.items() if k != "timestamp"}, sort_keys=True) for part in parts)


def test_a_long_output_is_stored_completely(project: Project) -> None:
    run = import_path(project, data("claude-code/89-7eb280e769-13.jsonl")).runs[0]

    assert max(len(output) for output in run.tool_calls.values_list("output", flat=True)) == 76_388


def test_images_are_kept(project: Project) -> None:
    run = import_path(project, data("claude-code/ad-a8171575ce-0.jsonl")).runs[0]

    outputs = list(run.tool_calls.values_list("output", flat=True))
    images = [item for output in outputs if isinstance(output, list) for item in output if isinstance(item, dict)]
    assert [(image["kind"], image["media_type"]) for image in images] == [("binary", "image/png")]
    # The longest output of all files: 480,413 characters of JSON, nearly all of them this image.
    image = b64encode(urlsafe_b64decode(images[0]["data"])).decode()
    assert len(image) > 480_000
    assert image in data("claude-code/ad-a8171575ce-0.jsonl").read_text()
    assert run.title.strip()
    assert run.labels == ["folder:2", "branch:alex/ent-207-fix-agent-name-misattribution"]


def test_progress_lines_of_a_sub_agent_become_a_child_run(project: Project) -> None:
    report = import_path(project, data("claude-code/ad-a8171575ce-0.jsonl"))

    parent, child = report.runs
    [call] = parent.tool_calls.filter(tool_name="Task")
    assert (child.parent_run_id, call.child_run_id) == (parent.pk, child.pk)
    assert (child.status, child.tool_calls.count()) == ("completed", 36)


def test_thinking_keeps_its_signature_and_local_texts_have_no_usage(project: Project) -> None:
    run = import_path(project, data("claude-code/b6-f735fbac66-0.jsonl")).runs[0]

    answers = run.messages.filter(role="assistant")
    thoughts = [part for row in answers for part in row.content["parts"] if part["part_kind"] == "thinking"]
    assert (len(thoughts), all(part["signature"] for part in thoughts)) == (219, True)
    [local] = answers.filter(model="<synthetic>")
    assert not local.content.get("usage")
    assert run.log.events.filter(type="context.trimmed").count() == 2


# --- Hand-made sessions ---------------------------------------------------------------------------------------------


def line(type_: str, content: Any, uuid: str, **fields: Any) -> dict[str, Any]:
    message = {"role": type_, "content": content, **fields.pop("message", {})}
    return {"type": type_, "uuid": uuid, "sessionId": "s1", "message": message, **fields}


def write(path: Path, *lines: object) -> Path:
    path.write_text("".join(json.dumps(one) + "\n" for one in lines))
    return path


def call(call_id: str, **arguments: Any) -> dict[str, Any]:
    return {"type": "tool_use", "id": call_id, "name": "Task", "input": arguments}


def test_sidechain_lines_are_child_runs_of_the_call_with_their_prompt(project: Project, tmp_path: Path) -> None:
    report = import_path(
        project,
        write(
            tmp_path / "s.jsonl",
            line("user", "Do both", "u1"),
            line("assistant", [call("c1", prompt="One"), call("c2", prompt="Two")], "a1", message={"id": "m1"}),
            line("user", "Two", "u2", isSidechain=True),
            line("user", "One", "u3", isSidechain=True),
            line("assistant", [{"type": "text", "text": "2"}], "a2", parentUuid="u2", isSidechain=True),
            line("assistant", [{"type": "text", "text": "1"}], "a3", parentUuid="u3", isSidechain=True),
            line("user", [{"type": "tool_result", "tool_use_id": "c2", "content": "2"}], "u4"),
        ),
    )

    parent, *children = report.runs
    assert [(child.prompt, child.status) for child in children] == [("Two", "completed"), ("One", "waiting")]
    linked = {call.call_id: call.child_run_id for call in parent.tool_calls.all()}
    assert linked == {"c2": children[0].pk, "c1": children[1].pk}


def test_a_named_sub_agent_of_the_same_file_ends_once(project: Project, tmp_path: Path) -> None:
    result = {"toolUseResult": {"agentId": "a7", "status": "completed"}}
    path = write(
        tmp_path / "s.jsonl",
        line("user", "Do it", "u1"),
        line("assistant", [call("c1", prompt="Two")], "a1", message={"id": "m1"}),
        line("user", "Two", "u2", isSidechain=True, agentId="a7"),
        line("assistant", [{"type": "text", "text": "2"}], "a2", parentUuid="u2", isSidechain=True, agentId="a7"),
        line("user", [{"type": "tool_result", "tool_use_id": "c1", "content": "2"}], "u3", **result),
    )

    child = next(run for run in import_path(project, path).runs if run.parent_run_id is not None)
    ends = child.log.events.filter(type__in=["run.completed", "run.failed", "run.stopped"])
    assert [event.type for event in ends] == ["run.completed"]


def test_a_copied_prompt_is_the_title_of_a_session_that_begins_with_a_note(project: Project, tmp_path: Path) -> None:
    path = write(
        tmp_path / "new.jsonl",
        {"type": "permission-mode", "sessionId": "new", "permissionMode": "default", "uuid": "n1"},
        line("user", "Fix the bug", "u1", sessionId="old"),
        line("assistant", [{"type": "text", "text": "Done."}], "a1", sessionId="old", message={"id": "m1"}),
    )

    [run] = import_path(project, path).runs
    assert run.title == "Fix the bug"


def test_a_sub_agents_file_is_a_child_of_the_session_imported_before(project: Project, tmp_path: Path) -> None:
    [parent] = import_path(project, write(tmp_path / "s1.jsonl", line("user", "Go", "u1"))).runs
    lines = [line("user", "One", "u2", isSidechain=True, agentId="a7")]

    [child] = import_path(project, write(tmp_path / "agent-a7.jsonl", *lines)).runs

    assert (child.parent_run_id, child.external_id) == (parent.pk, "claude-code:s1:a7")


def test_a_sub_agents_file_gets_its_parent_when_the_session_is_imported(project: Project, tmp_path: Path) -> None:
    """In either order: files of sub-agents are written while the session waits for their result."""
    lines = [line("user", "One", "u2", isSidechain=True, agentId="a7")]
    agent = write(tmp_path / "agent-a7.jsonl", *lines)
    session = write(tmp_path / "s1.jsonl", line("user", "Go", "u1"))
    other = line("user", "Two", "u3", sessionId="s1:x")
    [child] = import_path(project, agent).runs
    [stranger] = import_path(project, write(tmp_path / "other.jsonl", other)).runs
    assert child.parent_run_id is None

    [parent] = import_path(project, session).runs

    child.refresh_from_db()
    stranger.refresh_from_db()
    assert (child.parent_run, stranger.parent_run, parent.parent_run) == (parent, None, None)
    check_run(child)
    before = counts(project)
    assert [import_path(project, path).events for path in (session, agent, session)] == [0, 0, 0]
    assert counts(project) == before
    # Two watchers that read both files at once: neither saw the run of the other.
    AgentRun.objects.filter(pk=child.pk).update(parent_run=None)
    import_path(project, agent)
    assert counts(project) == before


def test_values_that_no_column_can_store_are_replaced_or_refused(project: Project, tmp_path: Path) -> None:
    """PostgreSQL stores no NUL in text, and its indexes no long names."""
    nul = "\x00"
    [run] = import_path(
        project,
        write(
            tmp_path / "s.jsonl",
            {"type": "summary", "summary": f"a{nul}", "leafUuid": f"u{nul}"},
            line("user", f"Hello{nul}", f"u{nul}", cwd=f"/x/{nul}y", gitBranch=nul),
            line("assistant", [{**call("c1", **{f"k{nul}": nul}), "name": "T"}], "a" * 500, message={"model": nul}),
            line("user", [{"type": "tool_result", "tool_use_id": "c1", "content": nul, "is_error": True}], "u3"),
            line("user", [{"type": "tool_result", "tool_use_id": "none", "content": [{"type": nul}]}], "u4"),
            line("assistant", [{"type": nul}], "a2", message={"id": nul, "usage": {"input_tokens": 10**12}}),
            {"type": "system", "subtype": "api_error", "error": {nul: nul}},
        ),
    ).runs

    assert dict(run.tool_calls.values_list("call_id", "status")) == {"c1": "error", "none": "completed"}
    assert run.input_tokens == 10**12


def test_the_session_json_of_the_web_is_imported(project: Project) -> None:
    path = data("claude-code-synthetic/simonw-sample_session.json")
    lines = json.loads(path.read_text())["loglines"]
    run = import_path(project, path).runs[0]

    blocks = [block for one in lines if one["type"] == "assistant" for block in one["message"]["content"]]
    assert run.tool_calls.count() == sum(block["type"] == "tool_use" for block in blocks)
    before = counts(project)
    assert import_path(project, path).events == 0
    assert counts(project) == before


@pytest.mark.parametrize(
    ("bad", "text"),
    [
        ("42", "s.jsonl:2: not a JSON object"),
        ('{"type": "user"', "s.jsonl:2: "),
        ('{"type": "user", "message": "no"}', "s.jsonl:2: user line without a message object"),
        ('{"type": "user", "message": {}}', "s.jsonl:2: message.content is neither a text nor a list"),
        ('{"type": "assistant", "message": {"content": [1]}}', "s.jsonl:2: message.content[0] is not a content block"),
        (
            '{"type": "assistant", "message": {"content": [{"type": "tool_use", "id": "", "name": "x"}]}}',
            "s.jsonl:2: message.content[0].id is not a text of 1 to 240 characters",
        ),
        (
            '{"type": "assistant", "message": {"content": "x", "usage": {"output_tokens": 1e30}}}',
            "s.jsonl:2: message.usage.output_tokens is not a number of tokens",
        ),
    ],
)
def test_a_bad_line_is_omitted_and_reported_or_refused(project: Project, tmp_path: Path, bad: str, text: str) -> None:
    path = write(tmp_path / "s.jsonl", line("user", "Hello", "u1"))
    path.write_text(path.read_text() + bad + "\n" + json.dumps(line("user", "Go on", "u2")) + "\n")

    with pytest.raises(ImportRefused) as error:
        import_path(project, path, is_strict=True)
    assert str(error.value).startswith(text)
    assert counts(project)["runs"] == 0

    report = import_path(project, path)
    [left_out] = report.left_out.lines
    assert f"s.jsonl:{left_out.line}: {left_out.reason}".startswith(text)
    assert report.runs[0].messages.count() == 2


def test_the_edge_cases_are_imported_without_the_invalid_lines(project: Project) -> None:
    path = data("claude-code-synthetic/edge_cases.jsonl")
    with pytest.raises(ImportRefused, match=r"^edge_cases\.jsonl:10: "):
        import_path(project, path, is_strict=True)
    assert counts(project)["runs"] == 0

    report = import_path(project, path)

    assert [one.line for one in report.left_out.lines] == [10, 11, 13, 15, 16, 18]
    assert report.runs
