"""Files the spans of a trace under its runs: spans with a known place, and the end of a complete trace."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field, replace
from datetime import datetime
from itertools import islice
from typing import Any, cast

from pydantic_ai.messages import ToolCallPart

from runs.external import contents
from runs.external.importers.base import ImportFile, ImportRefused
from runs.external.importers.reading.conversation import AnswerFacts, ChatMessage
from runs.external.importers.reading.json_place import JsonPlace
from runs.external.importers.reading.observed_messages import (
    answered_message,
    asked_text,
    instructions_of,
    open_call,
    sent_messages,
    with_call_id,
)
from runs.external.otlp.attribute_names import AGENT, MODEL_CALL, TOOL_CALL
from runs.external.otlp.run_writer import RunWriter
from runs.external.otlp.span_facts import SpanFacts
from runs.external.otlp.trace_plan import TracePlan, Unit, plan, usage_of
from runs.external.otlp.trace_tree import TraceTree
from runs.external.reported_usage import read_cost
from runs.lifecycle.reported_runs import ReportedRun
from runs.lifecycle.title_limits import MAX_TITLE
from runs.models import AgentRun, OtlpGroup, OtlpItem
from runs.providers.messages import canonical
from timeline.events.child import ChildRunStarted

_UNNAMED_AGENT = "otlp"
#: A placeholder file, so that values of spans can be read like values of a file.
_NO_FILE = ImportFile("span", b"")
_LONGEST_RESULT = 200_000


@dataclass
class TraceFiling:
    """The filing of a trace whose group is locked."""

    group: OtlpGroup
    tree: TraceTree
    #: By the ID of the agent's span; the key of the trace's run is empty.
    _writers: dict[str, RunWriter] = field(default_factory=dict)

    @classmethod
    def load(cls, group: OtlpGroup, waited_since: datetime, *, is_quiet: bool = True) -> TraceFiling:
        """Load the spans of a trace."""
        return cls(group, TraceTree(list(group.items.order_by("started_at", "item_id")), waited_since, is_quiet))

    def file(self) -> None:
        """File the spans whose place is known. A trace without an agent, a model call or a tool call creates no run."""
        current = plan(self.tree)
        if not current.units and self.group.run_id is None:
            return
        filed = {item.item_id: item for item in current.silent}
        for index, unit in enumerate(current.units):
            writer = self._writer_of(unit.owner)
            self._write(index, current, writer)
            for item in unit.items:
                item.filed_under = writer.run.pk
                filed[item.item_id] = item
        for item in filed.values():
            item.filed_under = item.filed_under or self._writer_of(None).run.pk
            item.facts = _kept(item)
        self._flush()
        OtlpItem.objects.bulk_update(filed.values(), ["filed_under", "facts"], batch_size=500)

    def end(self, root: OtlpItem) -> None:
        """End the runs of the trace, children first. The outcome of `root` is the outcome of the trace."""
        agents = {item.filed_under: item for item in self.tree.items if self.tree.kind(item) == AGENT}
        for run in AgentRun.objects.filter(pk__in=self._children()).order_by("-pk"):
            agent = agents.get(run.pk, root)
            self._end(RunWriter.load(run, self.group.sender), agent, agent.ended_at)
        if self.group.run is not None:
            self._end(self._writer_of(None), root, max(item.ended_at for item in self.tree.items))

    def _end(self, writer: RunWriter, span: OtlpItem, at: datetime) -> None:
        facts = cast("SpanFacts", span.facts or {})
        if not writer.run.title and not writer.run.state.terminal:
            writer.projection.set_run(title=facts.get("name", "")[:200])
        error, answer = facts.get("error"), facts.get("output")
        result = contents.text_content(_answered(answer, "").content) if answer else None
        writer.end(
            at,
            error=(error["type"], error["text"]) if error else None,
            result=result[:_LONGEST_RESULT] if result else None,
            is_stopped=facts.get("is_stopped", False),
        )
        writer.flush()

    def _children(self) -> set[Any]:
        return {item.filed_under for item in self.tree.items} - {self.group.run_id, None}

    def _flush(self) -> None:
        for writer in self._writers.values():
            writer.flush()
        self._writers.clear()

    # --- Runs -------------------------------------------------------------------------------------------------------

    def _writer_of(self, owner: OtlpItem | None) -> RunWriter:
        key = owner.item_id if owner is not None else ""
        if key not in self._writers:
            self._writers[key] = self._open_trace() if owner is None else self._open_child(owner)
        return self._writers[key]

    def _open_trace(self) -> RunWriter:
        if self.group.run is not None:
            return RunWriter.load(self.group.run, self.group.sender)
        writer = RunWriter.open(self.group.project, self._reported(None), self._session())
        self.group.run = writer.run
        self.group.save(update_fields=["run"])
        self.group.items.update(run=writer.run)
        return writer

    def _open_child(self, agent: OtlpItem) -> RunWriter:
        reference = f"{self._reference()}:{agent.item_id}"
        enclosing = self.tree.place(agent).agent
        parent = self._writer_of(self.tree.owner(enclosing) if enclosing is not None else None)
        run = AgentRun.objects.filter(project=self.group.project_id, external_id=reference).first()
        if run is not None:
            # A run of another trace keeps its reference, and the agent belongs to the enclosing run.
            return RunWriter.load(run, self.group.sender) if run.parent_run_id == parent.run.pk else parent
        reported = replace(self._reported(agent), external_id=reference, parent=parent.run)
        writer = RunWriter.open(self.group.project, reported, self._session())
        tool = self.tree.place(agent).tool
        if tool is None or tool.filed_under is not None:
            call_id = str((tool.facts or {}).get("call_id") or tool.item_id) if tool is not None else None
            parent.report(ChildRunStarted(run_id=reference, call_id=call_id), agent.started_at)
        return writer

    def _reported(self, agent: OtlpItem | None) -> ReportedRun:
        """Return the facts about a run when it is opened. Its agent is the outermost agent, or else the program."""
        known = [item for item in self.tree.items if item.facts]
        agents = [agent] if agent is not None else [item for item in known if self.tree.kind(item) == AGENT]
        names = [(item.facts or {}).get("agent", "") for item in [*agents, *known]]
        models = [(item.facts or {}).get("model", "") for item in known]
        began = agent or min(self.tree.items, key=lambda item: item.started_at)
        return ReportedRun(
            source=AgentRun.Source.OTLP,
            external_id=self._reference(),
            agent=next((name for name in names if name), _UNNAMED_AGENT),
            model=next((model for model in models if model), ""),
            title=self._title(agent, known),
            by=self.group.sender,
            created_at=began.started_at,
        )

    def _title(self, agent: OtlpItem | None, known: Iterable[OtlpItem]) -> str:
        """Return the request in the outermost span of the trace, or in an agent's span; empty without a request."""
        names = [str((item.facts or {}).get("title", "")) for item in known if agent is None]
        outermost = agent or self.tree.root() or self.tree.outermost_agent()
        asked = asked_text(_place((outermost.facts or {}).get("input"))) if outermost is not None else ""
        return next((name for name in names if name), asked[:MAX_TITLE])

    def _reference(self) -> str:
        return f"otlp:{self.group.key}"

    def _session(self) -> str:
        sessions = ((item.facts or {}).get("session", "") for item in self.tree.items)
        return next((str(session) for session in sessions if session), "")

    # --- Work -------------------------------------------------------------------------------------------------------

    def _write(self, index: int, current: TracePlan, writer: RunWriter) -> None:
        unit = current.units[index]
        writer.conversation.number_from(f"{unit.main.item_id}:{unit.kind}:")
        facts = cast("SpanFacts", unit.main.facts)
        if unit.kind == AGENT:
            self._write_agent(unit, facts, writer, is_asked=unit.owner in current.asked)
        elif unit.kind == MODEL_CALL:
            self._write_model_call(unit, facts, writer, islice(current.units, index + 1, None))
        else:
            self._write_tool_call(unit.main, facts, writer)

    def _write_agent(self, unit: Unit, facts: SpanFacts, writer: RunWriter, *, is_asked: bool) -> None:
        """Add an agent's request, unless a model call has it."""
        projection, agent = writer.projection, facts.get("agent", "")
        place, config = self.tree.place(unit.main), projection.run.agent_config
        if agent and unit.owner is None and place.agent is None and config.get("agent_id") != agent:
            # The agent's span arrived after its first calls, whose run was named after the program.
            projection.set_run(agent_config={**config, "agent_id": agent})
        if not projection.run.session_id and facts.get("session"):
            # Cut again: masking can make a text longer.
            projection.set_run(session_id=facts["session"][:128])
        if not writer.has_request and not is_asked:
            self._write_request(facts.get("input"), writer, unit.main.started_at)

    def _write_request(self, value: Any, writer: RunWriter, at: datetime, *, also: Any = None) -> None:
        open_calls = writer.conversation.open_calls
        messages = [*instructions_of(_place(also)), *_sent(value)]
        sent = [with_call_id(message, open_calls) for message in messages]
        writer.take_request(writer.conversation.add_request(sent, at))
        writer.has_request = writer.has_request or any(message.role == "user" for message in sent)

    def _write_model_call(self, unit: Unit, facts: SpanFacts, writer: RunWriter, following: Iterable[Unit]) -> None:
        main, output = unit.main, facts.get("output")
        is_agent = self.tree.kind(main) == AGENT
        if not (is_agent and writer.has_request):
            self._write_request(facts.get("input"), writer, main.started_at, also=output)
        error = facts.get("error")
        if error and not output:
            writer.take([writer.conversation.error(error["type"], error["text"], main.ended_at)])
            if not unit.counted:
                return
        usage: dict[str, int] = {}
        tier: dict[str, str] = {}
        for item in unit.counted:
            tier |= (item.facts or {}).get("tier") or {}
            for name, count in usage_of(item).items():
                usage[name] = usage.get(name, 0) + count
        costs = [cost for item in unit.counted if (cost := read_cost((item.facts or {}).get("cost"))) is not None]
        answer = AnswerFacts(
            model=_model_of(unit),
            usage={**usage, **tier},
            cost=sum(costs) if costs else facts.get("cost"),
            began_at=main.started_at,
            at=main.ended_at,
        )
        message = _answered(output, main.item_id)
        if output is None:
            # Programs send no contents by default. The calls are derived from the tools that run next.
            message = replace(message, calls=_calls_after(unit, following, set(writer.conversation.open_calls)))
        writer.take(writer.conversation.add(message, answer))

    def _write_tool_call(self, tool: OtlpItem, facts: SpanFacts, writer: RunWriter) -> None:
        conversation = writer.conversation
        times = AnswerFacts(began_at=tool.started_at, at=tool.ended_at)
        call_id = facts.get("call_id", "")
        if not call_id:
            own = tool.item_id if tool.item_id in conversation.open_calls else ""
            call_id = own or open_call(facts["tool"], conversation.open_calls)
        if call_id not in conversation.open_calls:
            call_id = call_id or tool.item_id
            start = conversation.unrequested_call(call_id, facts["tool"], facts.get("arguments"), times)
            writer.take([start])
        facts["call_id"] = call_id
        for agent in self.tree.started_by(tool):
            reference = f"{self._reference()}:{agent.item_id}"
            writer.report(ChildRunStarted(run_id=reference, call_id=call_id), agent.started_at)
        error, result = facts.get("error"), facts.get("result")
        output = error["text"] if error and not result else result
        text = output if isinstance(output, str) else "" if output is None else canonical(output)
        message = ChatMessage(
            role="tool", content=text, call_ids=[call_id], tool_name=facts["tool"], has_failed=bool(error)
        )
        writer.take(conversation.add(message, times))


def _kept(item: OtlpItem) -> dict[str, Any] | None:
    """Return the facts that later spans and the end of a run need, from a span that encloses others."""
    names = ("name", "error", "is_stopped", "output") if item.kind == AGENT or not item.parent_id else ()
    names = (*names, "call_id") if item.kind == TOOL_CALL else names
    return {name: (item.facts or {})[name] for name in names if (item.facts or {}).get(name)} or None


def _model_of(unit: Unit) -> str:
    models = ((item.facts or {}).get("model", "") for item in [unit.main, *unit.counted, *unit.items])
    return next((model for model in models if model), "")


def _calls_after(call: Unit, units: Iterable[Unit], known: set[str]) -> list[ToolCallPart]:
    """Return the calls of the tools that run in the same run after a model call, until the next one."""
    calls = []
    for unit in units:
        if unit.owner is not call.owner or unit.kind == AGENT:
            continue
        if unit.kind == MODEL_CALL:
            break
        facts = cast("SpanFacts", unit.main.facts)
        call_id = facts.get("call_id") or unit.main.item_id
        if call_id not in known:
            known.add(call_id)
            calls.append(contents.call_part(call_id, facts["tool"], facts.get("arguments")))
    return calls


def _place(value: Any) -> JsonPlace:
    return JsonPlace(_NO_FILE, value)


def _sent(value: Any) -> list[ChatMessage]:
    """Return the messages of a request. A request in an unknown form becomes one message with its text."""
    try:
        return sent_messages(_place(value), {})
    except ImportRefused:
        return [ChatMessage(role="user", content=canonical(value))]


def _answered(value: Any, prefix: str) -> ChatMessage:
    try:
        message = answered_message(_place(value), prefix)
    except ImportRefused:
        return ChatMessage(role="assistant", content=canonical(value))
    used: set[str] = set()
    calls = []
    for index, call in enumerate(message.calls):
        call_id = call.tool_call_id if call.tool_call_id not in used else f"{call.tool_call_id[:200]}-{index + 1}"
        used.add(call_id)
        calls.append(replace(call, tool_call_id=call_id))
    return replace(message, calls=calls)
