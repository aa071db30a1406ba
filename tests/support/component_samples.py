"""The content of the page of components: texts, rows that are never saved, and events of a run in every state.

The ordinary texts come from the demo's recordings. The IDs of rows are small numbers, so that links and forms of the
page lead to pages that do not exist.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from decimal import Decimal
from enum import StrEnum
from functools import cache
from typing import Any, NamedTuple
from uuid import UUID

from agentops.accounts.models import Project
from runs.fixtures.fixture_files import load_named
from runs.fixtures.format import Fixture, RecordedResult
from runs.models import AgentRun, AgentRunToolCall, Approval
from runs.pages.run.facts import Billing, DiscardedCalls, ModelShare, RunData
from runs.pages.run.lineage import Cascade, NamedRun, TakenAlong
from runs.statuses import Effect, RunStatus, ToolStatus, WaitReason
from timeline.events import EventType as E
from timeline.models import Log

#: The recordings with the ordinary texts: a short one, and one with a plan and a Go program.
UPDATE, PLAN = "claude-code-5c", "claude-code-7e"


class ContentKind(StrEnum):
    """The kinds of content. A page shows components with one kind at a time, because some of their IDs are fixed."""

    ORDINARY = "ordinary"
    LONG = "long"
    EMPTY = "empty"
    HOSTILE = "hostile"


@dataclass(frozen=True)
class SampleContent:
    """Content of one kind."""

    kind: ContentKind
    #: A name of an agent, a tool or a person.
    name: str
    #: A title of a run.
    title: str
    #: A text written by a person.
    text: str
    #: A text written by a model.
    markdown: str
    thinking: str
    #: The arguments of a tool call that edits a file.
    arguments: dict[str, Any]
    #: Output of a program, with terminal colours.
    output: str
    #: The content of a file in Go.
    code: str
    patch: str
    payload: Any
    error: str
    #: A count of tokens, seconds and the like.
    number: int
    #: Number of list entries.
    rows: int

    @property
    def entries(self) -> range:
        """Return a number for each entry of a list, from 1."""
        return range(1, self.rows + 1)


@cache
def content_of(kind: ContentKind) -> SampleContent:
    """Return the content of this kind."""
    return {
        ContentKind.ORDINARY: _ordinary,
        ContentKind.LONG: _long,
        ContentKind.EMPTY: _empty,
        ContentKind.HOSTILE: _hostile,
    }[kind]()


def _ordinary() -> SampleContent:
    update, plan = load_named(UPDATE), load_named(PLAN)
    first, edit = update.answers[0], update.answers[1]
    prompt = str(first.input.prompt)
    old, new = edit.tool_calls[0].args_as_dict()["old_string"], edit.tool_calls[0].args_as_dict()["new_string"]
    return SampleContent(
        kind=ContentKind.ORDINARY,
        name="compiler-updates",
        title=prompt,
        text=prompt,
        markdown=update.answers[-1].output.text,
        thinking=_thinking(update),
        arguments=edit.tool_calls[0].args_as_dict(),
        output=f"\x1b[32mok\x1b[0m  \x1b[1mentire.io/cli/cmd/entire\x1b[0m\n\x1b[31m{_output(update, 1)}\x1b[0m",
        code=str(plan.answers[0].input.prompt).partition("```go\n")[2].partition("```")[0],
        patch=f"diff --git a/go.mod b/go.mod\n--- a/go.mod\n+++ b/go.mod\n@@ -1 +1 @@\n-{old}\n+{new}\n",
        payload={"files": ["mise.toml", "go.mod"], "changed": 2, "dry_run": False, "ticket": None},
        error=_output(update, 1),
        number=41_958,
        rows=3,
    )


def _long() -> SampleContent:
    """Return the ordinary texts repeated many times, and words without a place to break."""
    plain, prompt = content_of(ContentKind.ORDINARY), str(load_named(PLAN).answers[0].input.prompt)
    word = "compare-the-versions-of-every-module-" * 6
    output = _output(load_named(PLAN), 0)
    return SampleContent(
        kind=ContentKind.LONG,
        name=word[:120],
        title=f"{plain.title} {word}"[:200],
        text=f"{prompt}\n{word}",
        markdown=f"{prompt}\n\n| module | version |\n| --- | --- |\n| {word} | {word} |\n\n{word}",
        thinking=f"{plain.thinking} " * 40,
        arguments={"file_path": f"/{word}/{word}.go", "old_string": output, "new_string": output.replace("err", "e")},
        output=plain.output * 60,
        code=plain.code * 10,
        patch=plain.patch + "".join(f"@@ -{at} +{at} @@\n-{word}\n+{word}{at}\n" for at in range(2, 20)),
        payload={word: [{"path": f"{word}{at}", "lines": list(range(20))} for at in range(20)]},
        error=f"{plain.error} {word} " * 8,
        number=987_654_321_012,
        rows=12,
    )


def _empty() -> SampleContent:
    return SampleContent(
        kind=ContentKind.EMPTY,
        name="",
        title="",
        text="",
        markdown="",
        thinking="",
        arguments={},
        output="",
        code="",
        patch="",
        payload={},
        error="",
        number=0,
        rows=0,
    )


def _hostile() -> SampleContent:
    """Return texts that would take effect if a page treated them as markup, terminal codes, or a template."""
    markup = "<script>alert('markup')</script><img src=x onerror=alert('markup')>"
    closing = "</textarea></pre></bdi></p></li></ol></table></main><h1 id=broken>out</h1>"
    invisible = "\u202egnp.exe\u2066 zero\u200bwidth\ufeff \x00 \x1b]0;title\x07 \x1b[2J"
    links = "[a](javascript:alert('link')) ![b](https://tracker.invalid/b.png) <svg onload=alert('svg')>"
    text = "\n".join([markup, closing, invisible, links, "{{ 7*7 }} {% debug %}", "data: x\r\revent: end\r\r"])
    return SampleContent(
        kind=ContentKind.HOSTILE,
        name=f"{markup}{invisible}"[:200],
        title=f"{closing}{markup}"[:200],
        text=text,
        markdown=f"# {markup}\n\n{links}\n\n```html\n{text}\n```\n\n| {closing} |\n| --- |\n| {markup} |",
        thinking=text,
        arguments={"command": f"echo {markup}", markup: {closing: [invisible, None]}},
        output=f"\x1b[31m{text}\x1b[0m\x1b]8;;javascript:alert(1)\x07link\x1b]8;;\x07",
        code=text,
        patch=f"diff --git a/x b/x\n--- a/x\n+++ b/x\n@@ -1 +1 @@\n-{markup}\n+{closing}\n",
        payload={markup: [closing, invisible, {"__proto__": links}]},
        error=text,
        number=7,
        rows=3,
    )


def _thinking(fixture: Fixture) -> str:
    parts = fixture.answers[0].response.parts
    return "\n\n".join(str(part.content) for part in parts if part.part_kind == "thinking")


def _output(fixture: Fixture, number: int) -> str:
    """Return the result of the first tool call of a recorded model call."""
    results = [result for result in fixture.answers[number].tools.values() if isinstance(result, RecordedResult)]
    return str(results[0].output)


#: The time of all sample events. Fixed, so that screenshots of the page do not differ.
BEGIN = datetime(2026, 11, 2, 9, 30, tzinfo=UTC)
MODEL = "claude-opus-4-5-20251101"
_PROJECT, _RUN, _CALL = 1 << 16, 2 << 16, 3 << 16


def sample_id(number: int) -> UUID:
    """Return the ID of a run."""
    return UUID(int=_RUN + number)


def sample_project(content: SampleContent) -> Project:
    """Return a project. Its name comes from the content; its slug must be valid."""
    return Project(pk=UUID(int=_PROJECT), slug="sample", name=content.name or "sample", settings={})


def sample_run(content: SampleContent, status: RunStatus = RunStatus.RUNNING, reason: str = "", number: int = 1) -> Any:
    """Return a run with the columns and annotations that pages read."""
    project, is_empty = sample_project(content), content.kind is ContentKind.EMPTY
    log = Log(pk=sample_id(number), project=project, last_seq=0 if is_empty else 240)
    log.last_event_at = BEGIN + timedelta(minutes=3)
    started_at = None if is_empty else BEGIN + timedelta(seconds=2)
    run: Any = AgentRun(
        log=log,
        project=project,
        root_run_id=log.pk,
        agent_config={"agent_id": content.name, "provider": "fixture", "model": MODEL},
        status=status,
        status_reason=reason,
        title=content.title,
        summary=content.markdown,
        error_type="rate_limited" if status is RunStatus.FAILED else "",
        error_message=content.error,
        labels=[content.name] * min(content.rows, 5),
        step_count=content.rows,
        input_tokens=content.number,
        output_tokens=content.number // 100,
        cache_read_tokens=content.number // 2,
        cost_usd=None if is_empty else Decimal(content.number) / 10_000,
        cost_source="unknown" if is_empty else "computed",
        unpriced_calls=content.rows,
        lease_owner=content.name or None,
        lease_expires_at=BEGIN + timedelta(days=36_500),
        created_at=BEGIN,
        queued_at=BEGIN,
        started_at=started_at,
        completed_at=BEGIN + timedelta(minutes=3) if status.terminal else None,
    )
    run.worked_time, run.open_since = (None, None) if is_empty else (timedelta(minutes=2, seconds=7), None)
    run.attempt_count = 1
    return run


def sample_data(content: SampleContent, run: Any) -> RunData:
    """Return the data of other tables that the page of a run reads."""
    has_calls = content.kind is not ContentKind.EMPTY
    lost = DiscardedCalls(2, abs(content.number), Decimal("0.25")) if has_calls else DiscardedCalls()
    share = ModelShare(content.name, 3, content.number, Decimal("1.5"))
    shares = [share, ModelShare(MODEL, 1, 0, None)] if has_calls else []
    saved = Decimal("0.31") if has_calls else None
    return RunData(
        run=run,
        calls_by_status=dict.fromkeys(ToolStatus, 2) if has_calls else {},
        tool_ms=content.rows * 4200,
        recoveries=content.rows // 2,
        has_failures=has_calls,
        failed_attempts=content.rows,
        agent={"agent_id": content.name, "version": "3", "provider": "fixture", "model": MODEL},
        billing=Billing(lost, lost, content.rows, saved, content.rows, content.rows * 1700, shares),
        has_budgets=False,
        child_count=content.rows,
    )


def sample_call(content: SampleContent, run: AgentRun, number: int = 1, **fields: Any) -> AgentRunToolCall:
    """Return a tool call of a run."""
    values: dict[str, Any] = {
        "pk": UUID(int=_CALL + number),
        "run": run,
        "call_id": f"call-{number}",
        "tool_name": content.name,
        "input": content.arguments,
        "effect": Effect.AT_MOST_ONCE if number % 2 else Effect.READ,
        "step_number": number,
        "created_at": BEGIN,
    }
    return AgentRunToolCall(**values | fields)


def sample_approval(content: SampleContent, run: AgentRun, number: int = 1) -> Approval:
    """Return a pending approval of a tool call."""
    return Approval(
        pk=UUID(int=_CALL + number),
        project=run.project,
        run=run,
        call=sample_call(content, run, number),
        tool_name=content.name,
        arguments=content.arguments,
        reason=content.error,
        requested_by="rule",
        created_at=BEGIN,
        expires_at=BEGIN + timedelta(days=1),
    )


def sample_cascade(content: SampleContent) -> Cascade:
    """Return the child runs that stop or pause together with a run."""
    named = [NamedRun(sample_id(each), content.title, content.name, RunStatus.RUNNING) for each in content.entries]
    along = TakenAlong(len(named) + bool(named), named)
    return Cascade(along, along)


#: The call ID of the tool call of unknown outcome, and the position of the rolled-back message.
LOST_CALL, ROLLED_BACK = "lost", 4
_LATER = BEGIN.isoformat()


class SampleEvent(NamedTuple):
    """The fields that differ between sample events."""

    type: str
    payload: dict[str, Any]
    step: int | None = None
    late: bool = False
    #: Whether the event is about the tool call of unknown outcome.
    is_of_lost_call: bool = False


def message_events(content: SampleContent) -> Iterator[SampleEvent]:
    """Yield messages, and model calls: answered, empty, rolled back, abandoned and streaming."""
    yield SampleEvent(E.MESSAGE_ADDED, {"role": "system", "content": content.text})
    yield SampleEvent(E.MESSAGE_ADDED, {"role": "user", "content": content.text})
    yield SampleEvent(E.LLM_TURN_START, {"model": MODEL}, 1)
    yield SampleEvent(E.LLM_TURN_END, _answer(content), 1)
    yield SampleEvent(E.LLM_TURN_START, {"model": content.name}, 2)
    yield SampleEvent(E.MESSAGE_ADDED, {"role": "assistant", "content": content.markdown}, 2)
    yield SampleEvent(E.RUN_ROLLED_BACK, {"reason": "crash", "positions": [ROLLED_BACK]}, 2)
    yield SampleEvent(E.LLM_TURN_START, {"model": MODEL}, 3)
    yield SampleEvent(E.LLM_TEXT_DELTA, {"text": content.text}, 3)
    yield SampleEvent(E.LLM_TURN_ABANDONED, {"reason": "overloaded"}, 3)
    yield SampleEvent(E.LLM_TURN_START, {"model": MODEL, "attempt": 1}, 3)
    yield SampleEvent(E.LLM_TURN_END, {"attempt": 1, "text": ""}, 3)
    yield SampleEvent(E.LLM_TURN_START, {"model": MODEL}, 4)
    yield SampleEvent(E.LLM_THINKING_DELTA, {"text": content.thinking}, 4)
    yield SampleEvent(E.LLM_TEXT_DELTA, {"text": content.markdown}, 4)
    yield SampleEvent(E.LLM_THINKING, {"text": content.thinking})
    yield SampleEvent(E.MESSAGE_ADDED, {"role": "tool_result", "content": content.output})
    yield SampleEvent(E.MESSAGE_ADDED, {"role": "user", "content": content.text}, late=True)


def call_events(content: SampleContent) -> Iterator[SampleEvent]:
    """Yield a tool call of each status, one with streamed output, and calls of an edit, a command and a file."""
    for number, status in enumerate(ToolStatus, 11):
        if status is not ToolStatus.PLANNED:
            yield from _call(content, number, status)
    yield SampleEvent(E.TOOL_START, {"call_id": LOST_CALL}, 20, is_of_lost_call=True)
    yield SampleEvent(E.RUN_WAITING, {"reason": WaitReason.UNKNOWN_TOOL}, 20, is_of_lost_call=True)
    yield from _done(content, 21, {"command": content.output, "description": content.title})
    yield from _done(content, 22, {"path": "main.go", "content": content.code})
    yield from _done(content, 23, {"patch": content.patch})


def other_events(content: SampleContent) -> Iterator[SampleEvent]:
    """Yield an event of each family without a card, and in each of its forms."""
    name, text, error = content.name, content.title, content.error
    call: dict[str, Any] = {"call_id": "call", "tool_name": name}
    change = {"from": content.arguments, "to": content.payload}
    child = str(sample_id(2))
    yield SampleEvent(E.RUN_CREATED, {"agent": name, "by": name})
    yield SampleEvent(E.RUN_STARTED, {"worker": name})
    yield SampleEvent(E.RUN_WAITING, {"reason": WaitReason.COOLDOWN, "until": _LATER})
    yield SampleEvent(E.RUN_WAITING, {"reason": WaitReason.INPUT, "question": text, "choices": [name, name]})
    yield SampleEvent(E.RUN_PAUSED, {"reason": "operator", "by": name, "detail": text})
    yield SampleEvent(E.RUN_RECOVERED, {"cause": "lease_expired", "last_event_at": _LATER})
    yield SampleEvent(E.RUN_RESUMED, {"run_id": child, "by": name})
    yield SampleEvent(E.RUN_FAILED, {"error_type": "server_error", "error": error})
    yield SampleEvent(E.RUN_STOPPED, {"by": name, "reason": text})
    yield SampleEvent(E.RUN_COMPLETED, {"summary": content.text, "structured_output": content.payload})
    yield SampleEvent(
        E.RETRY_SCHEDULED,
        {
            "what": "llm",
            "attempt": 1,
            "max_attempts": 4,
            "delay_ms": 8000,
            "error_type": "overloaded",
            "error": error,
            "details": content.output,
            "until": _LATER,
        },
    )
    yield SampleEvent(E.LLM_USAGE, {"model": name, "input_tokens": content.number})
    yield SampleEvent(E.LLM_USAGE_MOVED, {"run_id": child, "calls": content.number, "counted": "there"})
    for verdict in ("allow", "deny", "modify_args"):
        diff = {"diff": {name: change}} if verdict == "modify_args" else {}
        yield SampleEvent(E.HOOK_DECIDED, {**call, "hook": name, "verdict": verdict, "reason": text, **diff})
    yield SampleEvent(E.SAFETY_BLOCK, {**call, "code": name, "reason": text})
    yield SampleEvent(E.APPROVAL_REQUESTED, {**call, "by": "rule", "reason": text, "arguments": content.arguments})
    yield SampleEvent(E.APPROVAL_RESOLVED, {**call, "by": name, "decision": "approved", "always": True})
    yield SampleEvent(E.APPROVAL_RESOLVED, {**call, "by": name, "decision": "denied", "diff": {name: change}})
    yield SampleEvent(E.TOOL_OUTCOME_RESOLVED, {**call, "decision": "done", "by": name})
    yield SampleEvent(E.COMMAND_RECEIVED, {"type": "send", "by": name, "payload": content.payload, "refused": "late"})
    yield SampleEvent(
        E.POLICY_APPLIED,
        {
            "trigger": "on_error",
            "action": "resume",
            "attempt": 1,
            "attempts": 3,
            "gate": name,
            "output": content.output,
        },
    )
    yield SampleEvent(E.FILE_CHANGED, {"path": name, "additions": 2, "deletions": 1, "diff": content.patch})
    yield SampleEvent(E.GIT_COMMIT, {"sha": "394f81fab8", "branch": name, "subject": text, "url": name})
    yield SampleEvent(E.DEPLOY_STATUS, {"status": "failed", "service": name, "error": error})
    yield SampleEvent(E.HANDOFF, {"from_agent": name, "to_agent": name, "run_id": child, "prompt": content.text})
    yield SampleEvent(E.CHILD_RUN_COMPLETED, {"run_id": child, "agent": name, "status": "failed", "error": error})
    yield SampleEvent(E.FLOW_STARTED, {"flow": name, "inputs": content.payload})
    yield SampleEvent(E.NODE_COMPLETED, {"node": name, "run_id": child, "output": content.payload})
    yield SampleEvent(E.ERROR, {"error_type": "tool_error", "error": error, "context": name, "details": content.output})
    yield SampleEvent(E.BUDGET_WARNING, {"budget": name, "used": "4.10", "limit": "5.00"})
    yield SampleEvent(E.MESSAGE_ADDED, {"role": "narrator", "content": content.text})
    yield SampleEvent("x.sample", {"message": text, "data": content.payload})


def _answer(content: SampleContent) -> dict[str, Any]:
    calls = [{"id": f"call-{at}", "name": content.name or "tool"} for at in content.entries]
    return {
        "model": MODEL,
        "text": content.markdown,
        "thinking": content.thinking,
        "tool_calls": calls,
        "input_tokens": content.number,
        "output_tokens": content.number // 90,
        "duration_ms": 6111,
        "cost_usd": "0.2307",
        "finish_reason": content.name,
    }


def _call(content: SampleContent, step: int, status: ToolStatus) -> Iterator[SampleEvent]:
    call: dict[str, Any] = {"call_id": f"call-{step}", "tool_name": content.name or "tool"}
    yield SampleEvent(E.TOOL_START, {**call, "arguments": content.arguments, "effect": "at_most_once"}, step)
    yield SampleEvent(E.TOOL_OUTPUT, {**call, "text": content.output}, step)
    if status is not ToolStatus.RUNNING:
        failed = {"error": content.error} if status is ToolStatus.ERROR else {"output": content.output}
        yield SampleEvent(E.TOOL_END, {**call, "status": status.value, "duration_ms": 2250, **failed}, step)


def _done(content: SampleContent, step: int, arguments: dict[str, Any]) -> Iterator[SampleEvent]:
    call: dict[str, Any] = {"call_id": f"call-{step}", "tool_name": content.name or "tool"}
    yield SampleEvent(E.TOOL_START, {**call, "arguments": arguments}, step)
    yield SampleEvent(E.TOOL_END, {**call, "status": "completed", "output": content.patch, "duration_ms": 40}, step)
