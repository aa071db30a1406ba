"""Rollouts of Codex: the JSONL files of its folder `sessions`.

A rollout has the items of answers one by one, and a token count after each answer. The first item after the result of
a call begins another answer. Encrypted reasoning is not imported.

In a compaction, Codex asks the model for a summary of the conversation. The answer is not among the items. Its tokens
are in a count without an answer or, since version 0.154, only in a `token_usage_record` that the `compacted` line
names. That line may have the summary. An answer of which only the tokens are known is called bare here.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import replace
from datetime import datetime
from typing import Any

from pydantic_ai.messages import ModelResponsePart, SystemPromptPart, TextPart, ThinkingPart
from pydantic_ai.usage import RequestUsage

from runs.external import contents
from runs.external.event_input import IncomingEvent, is_identifier
from runs.external.foreign_payloads import count_of, read_usage
from runs.external.importers.answer_events import (
    AnswerPiece,
    ImportedAnswer,
    ImportedResult,
    RequestedCalls,
    bad_count,
    event_id,
    identifier_or_none,
    time_or_none,
    user_message,
)
from runs.external.importers.base import ImportedRun, ImportFile, Item, NothingToImport, folder_labels, usable_folder
from runs.external.importers.codex_history import CallNames, ThreadOrigin, origin_of
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
from runs.lifecycle.title_limits import MAX_TITLE
from runs.providers.messages import request
from timeline.events.llm import MessageAdded
from timeline.events.notice import ContextTrimmed, Error

PROVIDER = "openai"
AGENT = "codex"
#: The session ID at the end of a rollout's file name.
_ID_IN_NAME = re.compile(r"[0-9a-f]{8}(?:-[0-9a-f]{4}){3}-[0-9a-f]{12}(?=\.jsonl\Z)")


class CodexImporter:
    name = "codex"
    title = "Codex rollout (JSONL, or JSON of its first versions)"

    def detect(self, file: ImportFile) -> bool:
        if is_document(file.whole()):
            return True
        lines = [line for line in file.first_lines() if isinstance(line, Mapping)]
        has_envelope = any(line.get("type") in ENVELOPES and isinstance(line.get("payload"), Mapping) for line in lines)
        return has_envelope or (bool(lines) and is_first_version(lines[0]) and "type" not in lines[0])

    def read(self, file: ImportFile) -> Iterator[Item]:
        # The file is read three times, because all its lines together may not fit into memory.
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
    """Yield the lines, with `is_copied` set in the copied history."""
    for number, line in enumerate(lines):
        line.is_copied = origin is not None and number < origin.copied
        yield line


def _head(file: ImportFile, origin: ThreadOrigin | None) -> ImportedRun:
    """Return the head of the run. The model and the prompt of the copied history count only if there are no others."""
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
    if not is_identifier(session_id):
        # The first line may be damaged. The file name also has the ID.
        session_id = (_ID_IN_NAME.search(file.name) or [""])[0]
    if meta is None:
        meta = RolloutLine(file, "session_meta", {})
    if not session_id:
        raise file.refuse("no session_meta line with an id", line=meta.number)
    git = meta.payload.get("git")
    branch = contents.text_or_empty(git.get("branch")) if isinstance(git, Mapping) else ""
    return ImportedRun(
        run_ref=f"codex:{session_id}",
        agent=AGENT,
        model=model,
        title=prompt.partition("\n")[0][:MAX_TITLE],
        session_id=session_id,
        created_at=time_or_none(meta.payload.get("timestamp")) or meta.at,
        labels=folder_labels(meta.text("cwd"), branch),
        folder=usable_folder(meta.text("cwd")),
        parent_ref=f"codex:{origin.thread_id}" if origin and origin.is_parent else "",
        forked_ref=f"codex:{origin.thread_id}" if origin and not origin.is_parent else "",
    )


class _Rollout:
    """Converts the lines of a rollout into events."""

    def __init__(self, head: ImportedRun, origin: ThreadOrigin | None) -> None:
        self.run_ref = head.run_ref
        self.model = head.model
        #: The last name of the thread; empty without a name.
        self.title = ""
        self._names = CallNames([head.session_id, *([origin.thread_id] if origin else [])])
        self._call_names: tuple[str, ...] = ()
        #: Whether the current line is part of the copied history, and whether the current answer is.
        self._is_in_history = self._is_copied = False
        #: The pieces of the current answer, its ID, and the results that follow its calls.
        self._pieces: list[AnswerPiece] = []
        self._answer_id = ""
        self._results: list[ImportedResult] = []
        #: Whether only the tokens of the current answer are known.
        self._is_bare = False
        self._requested_at: datetime | None = None
        #: The time of the preceding line.
        self._before: datetime | None = None
        #: The tool name and the start time of each call.
        self._calls: dict[str, tuple[str, datetime | None]] = {}
        self._requested: RequestedCalls = Counter()
        #: The total of the last count.
        self._total: object = None
        #: The last `token_usage_record`: the ID of the response, and its usage.
        self._record: tuple[object, Mapping[str, Any]] = None, {}
        #: The usage of a compaction that was counted by its record. Some versions also write a count for it.
        self._compaction_usage: Mapping[str, Any] = {}

    def events(self, lines: Iterable[RolloutLine]) -> Iterator[IncomingEvent]:
        for line in lines:
            yield from self._end_history(line)
            if line.is_of_answer:
                if self._results or self._is_bare:
                    # Only preceding lines decide where an answer ends, so that a longer file gives the same answers.
                    yield from self._end_answer()
                self._add(line)
                if line.is_whole_call:
                    self._results.append(self._result(line, *whole_output(line)))
            elif line.kind == "token_count":
                yield from self._count(line)
            elif line.type == "token_usage_record":
                usage = line.payload.get("usage")
                self._record = line.payload.get("response_id"), usage if isinstance(usage, Mapping) else {}
            elif line.type == "response_item" and line.kind in RESULTS:
                output = line.payload.get("output", line.payload.get("tools"))
                self._results.append(self._result(line, *output_of(output)))
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
        """Add an item to the current answer, or begin an answer with it."""
        if not self._pieces:
            self._answer_id, self._requested_at, self._is_copied = line.line_id, self._before, line.is_copied
        self._pieces.append(AnswerPiece(parts=self._parts(line), at=line.at))

    def _count(self, line: RolloutLine) -> Iterator[IncomingEvent]:
        """End the current answer with the usage in a token count, or add a bare answer for it."""
        info = line.payload.get("info")
        if not isinstance(info, Mapping):
            return
        total, self._total = self._total, info.get("total_token_usage")
        if total == self._total is not None:
            return  # Codex repeats unchanged counts
        names = self._names.next(info, is_copied=line.is_copied)
        name = "last_token_usage" if isinstance(info.get("last_token_usage"), Mapping) else "total_token_usage"
        usage = info.get(name)
        if isinstance(usage, Mapping) and self._is_usable(line, usage, name):
            usage = usage if name == "last_token_usage" else _increase(usage, total)
            if self._pieces and not self._is_bare:
                # The usage is a separate piece without parts, because a file may end before the count. A later import
                # then adds the piece.
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
        """Yield the bare answer of a compaction, with its summary, if the tokens are known."""
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
        """Begin an answer of which only the tokens are known, if there are any."""
        if (tokens := _usage(usage)).has_values():
            self._pieces, self._answer_id = [AnswerPiece(parts=[], usage=tokens, at=line.at)], line.line_id
            self._requested_at, self._is_bare, self._is_copied = self._before, True, line.is_copied

    def _is_usable(self, line: RolloutLine, usage: Mapping[str, Any], name: str) -> bool:
        """Return whether the usage `name` of a line has only token counts. If not, leave the line out."""
        invalid = bad_count(usage)
        if invalid is not None:
            line.file.leave_out(line.refuse(f"{name}.{invalid} is not a number of tokens"))
        return invalid is None

    def _end_answer(self) -> Iterator[IncomingEvent]:
        """Yield the events of the current answer, if any, and of the results that follow it."""
        if self._pieces:
            yield from ImportedAnswer(
                run_ref=self.run_ref,
                answer_id=self._answer_id,
                pieces=self._pieces,
                model=self.model,
                provider=PROVIDER,
                requested_at=self._requested_at,
                requested=self._requested,
                call_names=self._call_names,
                is_copied=self._is_copied,
            ).events()
        yield from (result.event() for result in self._results)
        self._pieces, self._results, self._is_bare, self._call_names = [], [], False, ()

    def _parts(self, line: RolloutLine) -> list[ModelResponsePart]:
        """Return an item of an answer as message parts. Notes the start of a call."""
        payload = line.payload
        if line.kind == "message":
            return contents.response_parts(contents.text_content(payload.get("content")))
        if line.kind == "reasoning":
            blocks = payload.get("content") or payload.get("summary")
            objects = [block for block in blocks if isinstance(block, Mapping)] if isinstance(blocks, list) else []
            text = "\n".join(block["text"] for block in objects if isinstance(block.get("text"), str))
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
        """Return the event of a user or system message, an error or a compaction; None for any other line.

        Notes the model and the title in other lines.
        """
        payload: ContextTrimmed | Error
        line_id = event_id(f"line:{line.line_id}")
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
            content = line.payload.get("content")
            if line.payload.get("role") == "user":
                user = contents.user_content(content)
                return user_message(self.run_ref, line_id, user, line.at, is_copied=line.is_copied)
            part = SystemPromptPart(contents.text_content(content))
            part.timestamp = line.at or part.timestamp
            added, message = MessageAdded(role="system"), request(part)
            return IncomingEvent.of(self.run_ref, added, line_id, line.at, message=message, is_copied=line.is_copied)
        else:
            return None
        return IncomingEvent.of(self.run_ref, payload, line_id, line.at, is_copied=line.is_copied)


def _increase(total: Mapping[str, Any], before: object) -> Mapping[str, Any]:
    """Return the tokens since the previous total. If any of them decreased, Codex has started to count from 0 again."""
    counts = {name: count for name, value in total.items() if (count := count_of(value)) is not None}
    known = before if isinstance(before, Mapping) else {}
    earlier = {name: count for name in counts if (count := count_of(known.get(name))) is not None}
    if any(count < earlier.get(name, 0) for name, count in counts.items()):
        return counts
    return {name: count - earlier.get(name, 0) for name, count in counts.items()}


def _usage(usage: Mapping[str, Any]) -> RequestUsage:
    """Return a usage in the form of pydantic-ai. Like it, Codex includes cached tokens in the input tokens."""
    return read_usage({**usage, "reasoning_tokens": usage.get("reasoning_output_tokens")})
