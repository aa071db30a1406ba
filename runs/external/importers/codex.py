"""Rollouts of Codex: the JSONL files of its folder `sessions`.

A rollout has the items of answers one by one, followed by token counts. The first item after the result of a call
begins another answer. A count belongs to the preceding answer. Encrypted reasoning is not kept.

A compaction asks the model for a summary, whose answer is not among the items. Its tokens are a count without an answer
or, since version 0.154, only a `token_usage_record` that the `compacted` line names. That line may have the summary.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import replace
from datetime import datetime
from pathlib import PurePath
from typing import Any

from pydantic_ai.messages import (
    ModelMessage,
    ModelResponsePart,
    SystemPromptPart,
    TextPart,
    ThinkingPart,
    UserPromptPart,
)
from pydantic_ai.usage import RequestUsage

from runs.external import contents
from runs.external.event_input import IncomingEvent
from runs.external.importers.answer_events import (
    AnswerPiece,
    ImportedAnswer,
    ImportedResult,
    RequestedCalls,
    bad_count,
    event_id,
    identifier_or_none,
    time_or_none,
)
from runs.external.importers.base import ImportedRun, ImportFile, Item, NothingToImport
from runs.external.importers.codex_lines import (
    ENVELOPES,
    RESULTS,
    RolloutLine,
    is_document,
    is_first_version,
    output_of,
    read_lines,
    whole_output,
)
from runs.external.importers.reading.codex_calls import CallNames
from runs.external.importers.reading.codex_replay import ThreadOrigin, origin_of
from runs.external.reported_usage import count_of, read_usage
from runs.lifecycle.title_limits import MAX_LABEL, MAX_TITLE
from runs.providers.messages import request
from timeline.events import Payload
from timeline.events.message import MessageAdded
from timeline.events.notice import ContextTrimmed, Error

PROVIDER = "openai"
AGENT = "codex"
#: The session ID at the end of a rollout's file name.
_ID_IN_NAME = re.compile(r"[0-9a-f]{8}(?:-[0-9a-f]{4}){3}-[0-9a-f]{12}(?=\.jsonl\Z)")


class CodexImporter:
    """Rollouts of Codex."""

    name = "codex"
    title = "Codex rollout (JSONL, or JSON of its first versions)"

    def detect(self, file: ImportFile) -> bool:
        if is_document(file.whole()):
            return True
        lines = [line for line in file.first_lines() if isinstance(line, Mapping)]
        has_envelope = any(line.get("type") in ENVELOPES and isinstance(line.get("payload"), Mapping) for line in lines)
        return has_envelope or (bool(lines) and is_first_version(lines[0]) and "type" not in lines[0])

    def read(self, file: ImportFile) -> Iterator[Item]:
        # Read several times, because all lines together do not fit into memory.
        origin = origin_of(read_lines(file))
        head = _head(file, origin)
        yield head
        rollout = _Rollout(head, origin)
        is_empty = True
        for event in rollout.events(_marked(read_lines(file), origin)):
            is_empty = False
            yield event
        if is_empty:
            raise NothingToImport(file.name, "no messages")
        if rollout.title:
            yield replace(head, title=rollout.title)


def _marked(lines: Iterable[RolloutLine], origin: ThreadOrigin | None) -> Iterator[RolloutLine]:
    for number, line in enumerate(lines):
        line.is_copied = origin is not None and number < origin.copied
        yield line


def _head(file: ImportFile, origin: ThreadOrigin | None) -> ImportedRun:
    meta, model, prompt, copied = None, "", "", ("", "")
    for line in _marked(read_lines(file), origin):
        meta = meta or (line if line.type == "session_meta" else None)
        if line.is_copied:
            copied = copied[0] or line.model, copied[1] or line.prompt
            continue
        model, prompt = model or line.model, prompt or line.prompt
        if meta and model and prompt:
            break
    model, prompt = model or copied[0], prompt or copied[1]
    session_id = meta.text("id") if meta else ""
    if not (1 <= len(session_id) <= 128 and session_id.isprintable()):
        # The first line may be damaged. The file name also has the ID.
        session_id = (_ID_IN_NAME.search(file.name) or [""])[0]
    if meta is None:
        meta = RolloutLine(file, "session_meta", {})
    if not session_id:
        raise file.refuse("no session_meta line with an id", line=meta.number)
    git = meta.payload.get("git")
    branch = git.get("branch") if isinstance(git, Mapping) else None
    labels = [f"folder:{PurePath(meta.text('cwd')).name}"] if PurePath(meta.text("cwd")).name else []
    labels += [f"branch:{branch}"] if isinstance(branch, str) and branch else []
    return ImportedRun(
        run_ref=f"codex:{session_id}",
        agent=AGENT,
        model=model,
        title=prompt.partition("\n")[0][:MAX_TITLE],
        session_id=session_id,
        created_at=time_or_none(meta.payload.get("timestamp")) or meta.at,
        labels=[label[:MAX_LABEL] for label in labels],
        parent_ref=f"codex:{origin.thread_id}" if origin and origin.is_parent else "",
        forked_ref=f"codex:{origin.thread_id}" if origin and not origin.is_parent else "",
    )


class _Rollout:
    """The lines of a rollout as events."""

    def __init__(self, head: ImportedRun, origin: ThreadOrigin | None) -> None:
        self.run_ref = head.run_ref
        self.model = head.model
        #: The last name of the thread; empty without a name.
        self.title = ""
        self._names = CallNames([head.session_id, *([origin.thread_id] if origin else [])])
        self._call_names: tuple[str, ...] = ()
        #: Whether the current line is part of the history, and whether the current answer is.
        self._is_in_history = self._is_copied = False
        #: The current answer: its pieces, and the items that follow its calls.
        self._pieces: list[AnswerPiece] = []
        self._answer_id = ""
        self._after: list[ImportedResult] = []
        #: Whether only the tokens of the current answer are known, from a count without an answer.
        self._is_bare = False
        self._asked_at: datetime | None = None
        self._before: datetime | None = None
        self._calls: dict[str, tuple[str, datetime | None]] = {}
        self._requested: RequestedCalls = Counter()
        self._total: object = None
        #: The usage of the last model call from its record, with the ID of the response.
        self._record: tuple[object, Mapping[str, Any]] = None, {}
        #: The usage of a compaction counted by its record. Some versions also include it in the total.
        self._compaction_usage: Mapping[str, Any] = {}

    def events(self, lines: Iterable[RolloutLine]) -> Iterator[IncomingEvent]:
        for line in lines:
            yield from self._end_history(line)
            if line.is_of_answer:
                if self._after or self._is_bare:
                    # Only preceding lines decide where an answer ends, so that a longer file gives the same answers.
                    yield from self._end_answer()
                self._add(line)
                if line.is_whole_call:
                    self._after.append(self._result(line, *whole_output(line)))
            elif line.kind == "token_count":
                yield from self._count(line)
            elif line.type == "token_usage_record":
                usage = line.payload.get("usage")
                self._record = line.payload.get("response_id"), usage if isinstance(usage, Mapping) else {}
            elif line.type == "response_item" and line.kind in RESULTS:
                self._after.append(
                    self._result(line, *output_of(line.payload.get("output", line.payload.get("tools"))))
                )
            else:
                if line.type == "compacted":
                    yield from self._compaction(line)
                event = self._other(line)
                if event is not None:
                    yield from self._end_answer()
                    yield event
            self._before = line.at or self._before
        yield from self._end_answer()

    def _end_history(self, line: RolloutLine) -> Iterator[IncomingEvent]:
        """End the last answer of the copied history before the first line of this rollout."""
        if line.is_copied != self._is_in_history:
            yield from self._end_answer()
            self._is_in_history = line.is_copied

    def _add(self, line: RolloutLine) -> None:
        if not self._pieces:
            self._answer_id, self._asked_at, self._is_copied = line.line_id, self._before, line.is_copied
        self._pieces.append(AnswerPiece(parts=self._parts(line), at=line.at))

    def _count(self, line: RolloutLine) -> Iterator[IncomingEvent]:
        """End the answer with its usage. Codex repeats unchanged counts."""
        info = line.payload.get("info")
        if not isinstance(info, Mapping):
            return
        total, self._total = self._total, info.get("total_token_usage")
        if total == self._total is not None:
            return
        names = self._names.next(info, is_copied=line.is_copied)
        name = "last_token_usage" if isinstance(info.get("last_token_usage"), Mapping) else "total_token_usage"
        usage = info.get(name)
        if isinstance(usage, Mapping) and self._is_usable(line, usage, name):
            usage = usage if name == "last_token_usage" else _increase(usage, total)
            if self._pieces and not self._is_bare:
                # An extra piece without parts carries the usage, so that a file that ends before it can be completed by
                # a later import.
                self._pieces.append(AnswerPiece(parts=[], usage=_usage(usage), at=self._pieces[-1].at))
                self._call_names = names
                yield from self._end_answer()
            elif usage != self._compaction_usage:
                yield from self._end_answer()
                self._begin_bare(line, usage)
                self._call_names = names
        else:
            yield from self._end_answer()
        self._record, self._compaction_usage = (None, {}), {}

    def _compaction(self, line: RolloutLine) -> Iterator[IncomingEvent]:
        """Yield the answer with the summary, if its tokens are known."""
        response_id, usage = self._record
        if not self._is_bare and response_id is not None and response_id == line.payload.get("compaction_response_id"):
            if not self._is_usable(line, usage, "usage"):
                return
            self._record, self._compaction_usage = (None, {}), usage
            yield from self._end_answer()
            self._begin_bare(line, usage)
        if self._is_bare and (summary := line.text("message")):
            self._pieces.append(AnswerPiece(parts=[TextPart(summary)], at=line.at))
        yield from self._end_answer()

    def _begin_bare(self, line: RolloutLine, usage: Mapping[str, Any]) -> None:
        """Begin an answer of which only the tokens are known."""
        if (tokens := _usage(usage)).has_values():
            self._pieces, self._answer_id = [AnswerPiece(parts=[], usage=tokens, at=line.at)], line.line_id
            self._asked_at, self._is_bare, self._is_copied = self._before, True, line.is_copied

    def _is_usable(self, line: RolloutLine, usage: Mapping[str, Any], name: str) -> bool:
        """Return whether a usage counts tokens. If not, leave its line out."""
        count = bad_count(usage)
        if count is not None:
            line.file.leave_out(line.refuse(f"{name}.{count} is not a number of tokens"))
        return count is None

    def _end_answer(self) -> Iterator[IncomingEvent]:
        if self._pieces:
            yield from ImportedAnswer(
                run_ref=self.run_ref,
                answer_id=self._answer_id,
                pieces=self._pieces,
                model=self.model,
                provider=PROVIDER,
                asked_at=self._asked_at,
                requested=self._requested,
                call_names=self._call_names,
                is_copied=self._is_copied,
            ).events()
        yield from (result.event() for result in self._after)
        self._pieces, self._after, self._is_bare, self._call_names = [], [], False, ()

    def _parts(self, line: RolloutLine) -> list[ModelResponsePart]:
        payload = line.payload
        if line.kind == "message":
            return contents.response_parts(contents.text_content(payload.get("content")))
        if line.kind == "reasoning":
            blocks = payload.get("content") or payload.get("summary")
            texts = (
                [block.get("text") for block in blocks if isinstance(block, Mapping)]
                if isinstance(blocks, list)
                else []
            )
            text = "\n".join(text for text in texts if isinstance(text, str))
            return [ThinkingPart(text)] if text else []
        call_id, name = line.call_id, identifier_or_none(line.text("name")) or line.kind
        self._calls[call_id] = (name, line.at)
        arguments = next((payload[key] for key in ("arguments", "input", "action") if key in payload), None)
        return [contents.call_part(call_id, name, arguments)]

    def _result(self, line: RolloutLine, output: Any, is_error: bool) -> ImportedResult:
        name, started_at = self._calls.get(line.call_id, ("tool", None))
        return ImportedResult(
            run_ref=self.run_ref,
            call_id=line.call_id,
            tool_name=name,
            output=output,
            is_error=is_error,
            at=line.at,
            started_at=started_at,
            requested=self._requested,
            is_copied=line.is_copied,
        )

    def _other(self, line: RolloutLine) -> IncomingEvent | None:
        """Return the event of a message of a person or the program, of an error, or of a compaction."""
        payload: Payload
        message: ModelMessage | None = None
        if line.type == "turn_context":
            self.model = line.model or self.model
            return None
        if line.kind == "thread_name_updated" and not line.is_copied:
            self.title = " ".join(line.text("thread_name").split())[:MAX_TITLE] or self.title
            return None
        if line.type == "compacted":
            payload = ContextTrimmed()
        elif line.kind in ("error", "stream_error"):
            payload = Error(error_type=line.kind, error=line.text("message"))
        elif line.type == "response_item" and line.kind == "message":
            content = contents.user_content(line.payload.get("content"))
            if line.payload.get("role") == "user":
                payload, part = MessageAdded(role="user"), UserPromptPart(content)
                part.timestamp = line.at or part.timestamp
                message = request(part)
            else:
                payload, text = MessageAdded(role="system"), contents.text_content(line.payload.get("content"))
                prompt = SystemPromptPart(text)
                prompt.timestamp = line.at or prompt.timestamp
                message = request(prompt)
        else:
            return None
        line_id = event_id(f"line:{line.line_id}")
        return IncomingEvent(
            self.run_ref, payload.event_type, payload, event_id=line_id, ts=line.at, message=message,
            is_copied=line.is_copied,
        )  # fmt: skip


def _increase(total: Mapping[str, Any], before: object) -> Mapping[str, Any]:
    """Return the tokens since the previous count. If any count of the total decreased, the total restarted from 0."""
    counts = {name: count for name, value in total.items() if (count := count_of(value)) is not None}
    known = before if isinstance(before, Mapping) else {}
    earlier = {name: count for name in counts if (count := count_of(known.get(name))) is not None}
    if any(count < earlier.get(name, 0) for name, count in counts.items()):
        return counts
    return {name: count - earlier.get(name, 0) for name, count in counts.items()}


def _usage(usage: Mapping[str, Any]) -> RequestUsage:
    """Return the tokens. Codex includes cached tokens in the input, and reasoning tokens in the output."""
    reasoning = usage.get("reasoning_output_tokens")
    return read_usage({**usage, "reasoning_tokens": reasoning})
