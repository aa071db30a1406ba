"""Files the log events of a coding agent's session under its run: prompts, answers with their tool calls, errors."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Any

from pydantic_ai.messages import ToolCallPart

from runs.external import contents
from runs.external.importers.conversation import AnswerFacts, ChatMessage
from runs.external.otlp.log_events import ANSWER, ANSWER_TEXT, FAILURE, NOTE, PROMPT, TOOL_REFUSED, TOOL_RESULT
from runs.external.otlp.run_writer import RunWriter
from runs.lifecycle.reported_runs import ReportedRun
from runs.models import AgentRun, OtlpGroup, OtlpItem
from runs.providers.messages import canonical

#: Events that complete the preceding answer.
_TURNS = (PROMPT, ANSWER)
#: Events that end a tool call.
_CALLS = (TOOL_RESULT, TOOL_REFUSED)
_NOT_ALLOWED = "The call was not allowed."


@dataclass
class SessionFiling:
    """Files the events of a session, whose group is locked."""

    group: OtlpGroup
    #: The events that are not filed yet, in order.
    waiting: list[OtlpItem]
    #: Events received until this time have waited long enough.
    waited_since: datetime
    #: Whether no event arrived recently.
    is_quiet: bool

    @classmethod
    def load(cls, group: OtlpGroup, waited_since: datetime, *, is_quiet: bool = True) -> SessionFiling:
        """Load the unfiled events of a session."""
        waiting = sorted(group.items.filter(filed_under=None), key=_order)
        return cls(group, waiting, waited_since, is_quiet)

    def file(self) -> None:
        """File the events up to the last answer, and the last answer itself if it has waited long enough."""
        ready = self._ready()
        if not any(item.kind != NOTE for item in ready):
            return
        writer = self._writer()
        for turn in _turns(ready):
            _write(writer, turn)
        writer.flush()
        for item in ready:
            item.filed_under, item.facts = writer.run.pk, None
        OtlpItem.objects.bulk_update(ready, ["filed_under", "facts"], batch_size=500)

    def _ready(self) -> list[OtlpItem]:
        """Return the events that can be filed: those before the last answer, which may still get calls, or all."""
        if all(item.received_at <= self.waited_since for item in self.waiting):
            return self.waiting
        if not self.is_quiet:
            return []
        last = max((index for index, item in enumerate(self.waiting) if item.kind in _TURNS), default=0)
        is_prompt = bool(self.waiting) and self.waiting[last].kind == PROMPT
        return self.waiting[: last + 1 if is_prompt else last]

    def _writer(self) -> RunWriter:
        """Return the writer of the session's run. Opens the run if it does not exist."""
        if self.group.run is not None:
            return RunWriter.load(self.group.run, self.group.sender)
        facts: Any = [item.facts or {} for item in self.waiting]
        reported = ReportedRun(
            source=AgentRun.Source.OTLP,
            external_id=f"otlp:{self.group.key}",
            agent=facts[0]["program"],
            model=next((one["model"] for one in facts if one.get("model")), ""),
            by=self.group.sender,
            created_at=self.waiting[0].started_at,
        )
        writer = RunWriter.open(self.group.project, reported, facts[0]["session"])
        self.group.run = writer.run
        self.group.save(update_fields=["run"])
        self.group.items.update(run=writer.run)
        return writer


def _order(item: OtlpItem) -> tuple[Any, ...]:
    return item.started_at, (item.facts or {}).get("number", 0), item.pk


def _turns(items: Sequence[OtlpItem]) -> list[list[OtlpItem]]:
    """Group the events: a prompt, an error, or an answer with the texts and calls that follow it."""
    turns: list[list[OtlpItem]] = []
    for item in items:
        joins = item.kind in (*_CALLS, ANSWER_TEXT) and turns and turns[-1][0].kind in (ANSWER, *_CALLS, ANSWER_TEXT)
        if joins:
            turns[-1].append(item)
        elif item.kind == ANSWER and turns and turns[-1][0].kind == ANSWER_TEXT and _same_request(turns[-1][0], item):
            turns[-1].insert(0, item)  # its text came before the answer itself
        elif item.kind != NOTE:
            turns.append([item])
    return turns


def _same_request(text: OtlpItem, answer: OtlpItem) -> bool:
    return bool(_facts(text).get("request_id")) and _facts(text).get("request_id") == _facts(answer).get("request_id")


def _facts(item: OtlpItem) -> dict[str, Any]:
    return item.facts or {}


def _write(writer: RunWriter, turn: Sequence[OtlpItem]) -> None:
    """Write a group of events that `_turns` has returned."""
    head = turn[0]
    facts, conversation = _facts(head), writer.conversation
    conversation.number_from(f"{head.item_id}:")
    if head.kind == PROMPT:
        text = facts.get("text") or "(The text of the prompt was not sent.)"
        writer.apply(conversation.add(ChatMessage(role="user", content=text), AnswerFacts(at=head.started_at)))
    elif head.kind == FAILURE:
        writer.apply([conversation.error(facts["error_type"], facts["text"], head.started_at)])
    else:
        _write_answer(writer, turn)


def _write_answer(writer: RunWriter, turn: Sequence[OtlpItem]) -> None:
    """Write an answer. Its calls are derived from the results that follow it, which name them."""
    head, conversation = turn[0], writer.conversation
    facts = _facts(head)
    results = _one_for_each_call([item for item in turn if item.kind in _CALLS])
    calls = [_call(item) for item in results]
    for call, item in zip(calls, results, strict=True):
        conversation.call_facts[call.tool_call_id] = AnswerFacts(
            at=item.started_at, took_ms=_facts(item).get("duration_ms")
        )
    texts = [_facts(item).get("text") or "" for item in turn if item.kind in (ANSWER, ANSWER_TEXT)]
    message = ChatMessage(role="assistant", content="\n".join(text for text in texts if text), calls=calls)
    answer = AnswerFacts(
        model=facts.get("model", ""),
        usage={**(facts.get("usage") or {}), **(facts.get("tier") or {})},
        cost=facts.get("cost"),
        at=head.started_at,
        took_ms=facts.get("duration_ms"),
    )
    writer.apply(conversation.add(message, answer))
    for call, item in zip(calls, results, strict=True):
        writer.apply(conversation.add(_result(call, item), AnswerFacts(at=item.started_at)))


def _one_for_each_call(results: Sequence[OtlpItem]) -> list[OtlpItem]:
    """Return one event for each call. A result has precedence over the refusal of a call."""
    by_call: dict[str, OtlpItem] = {}
    for item in results:
        key = _facts(item).get("call_id") or item.item_id
        if key not in by_call or item.kind == TOOL_RESULT:
            by_call[key] = item
    return list(by_call.values())


def _call(item: OtlpItem) -> ToolCallPart:
    facts = _facts(item)
    return contents.call_part(facts.get("call_id") or item.item_id, facts["tool"], facts.get("arguments"))


def _result(call: ToolCallPart, item: OtlpItem) -> ChatMessage:
    facts = _facts(item)
    output = facts.get("output") or (_NOT_ALLOWED if item.kind == TOOL_REFUSED else "")
    return ChatMessage(
        role="tool",
        content=output if isinstance(output, str) else canonical(output),
        call_ids=[call.tool_call_id],
        tool_name=call.tool_name,
        has_failed=item.kind == TOOL_REFUSED or bool(facts.get("has_failed")),
    )
