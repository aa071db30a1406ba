"""Files the spans of a trace under its runs, and ends the runs of a complete trace."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field, replace
from datetime import datetime
from itertools import islice
from typing import Any, cast

from runs.external import contents
from runs.external.foreign_payloads import read_cost
from runs.external.importers.base import ImportFile, ImportRefused
from runs.external.importers.conversation import AnswerFacts, ChatMessage
from runs.external.importers.json_place import JsonPlace
from runs.external.importers.observed_messages import (
    answered_message,
    finish_reason_in,
    instructions_of,
    open_call,
    sent_messages,
    title_of_request,
    with_call_id,
)
from runs.external.otlp import call_identity
from runs.external.otlp.attribute_names import AGENT, HANDOFF, MODEL_CALL, TOOL_CALL
from runs.external.otlp.open_calls import calls_after, handoff_call, same_call
from runs.external.otlp.run_writer import RunWriter
from runs.external.otlp.span_facts import SpanFacts
from runs.external.otlp.trace_plan import TracePlan, Unit, merged_usage, plan
from runs.external.otlp.trace_tree import TraceTree
from runs.lifecycle.reported_runs import ReportedRun
from runs.lifecycle.title_limits import MAX_TITLE
from runs.models import AgentRun, OtlpGroup, OtlpItem
from runs.providers.messages import canonical
from timeline.events.work import ChildRunStarted, Handoff

#: The name given to an agent if no span names it.
_UNNAMED_AGENT = "otlp"
#: A placeholder, because the functions that read messages expect a value of a file.
_NO_FILE = ImportFile("span", b"")
#: Maximum characters of a run's result.
_LONGEST_RESULT = 200_000


@dataclass
class TraceFiling:
    """Files the spans of a trace, whose group is locked."""

    group: OtlpGroup
    tree: TraceTree
    #: The writers of child runs, by the ID of the agent's span, and of the trace's run, under an empty key.
    _writers: dict[str, RunWriter] = field(default_factory=dict)

    @classmethod
    def load(cls, group: OtlpGroup, waited_since: datetime, *, is_quiet: bool = True) -> TraceFiling:
        """Load the spans of a trace. `waited_since`, `is_quiet`: see `TraceTree`."""
        return cls(group, TraceTree(list(group.items.order_by("started_at", "item_id")), waited_since, is_quiet))

    def waits_since(self) -> datetime | None:
        """Return since when a trace without a run waits for another trace that has its calls; None if it does not."""
        items = self.tree.items
        is_waiting = self.group.run_id is None and call_identity.is_lone_call(items)
        return min(item.received_at for item in items) if is_waiting else None

    def file(self) -> None:
        """File the spans whose place is known. A trace without an agent, a model call or a tool call gets no run.

        Neither does a trace whose calls are all in the run of another trace.
        """
        current = plan(self.tree)
        if self.group.run_id is None and not current.units:
            return
        if self.group.run_id is None and call_identity.are_counted(self.tree, current.units, self.group.project_id):
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
            item.facts = _facts_to_keep(item)
        for writer in self._writers.values():
            writer.flush()
            if not call_identity.is_lone_call(self.tree.items):
                call_identity.take_over(writer.run, writer.calls)
        self._writers.clear()
        OtlpItem.objects.bulk_update(filed.values(), ["filed_under", "facts"], batch_size=500)

    def end(self, root: OtlpItem) -> None:
        """End the runs of the trace, children first. The outcome of `root` is the outcome of the trace."""
        agents = {item.filed_under: item for item in self.tree.items if self.tree.kind(item) == AGENT}
        children = {item.filed_under for item in self.tree.items} - {self.group.run_id, None}
        for run in AgentRun.objects.filter(pk__in=children).order_by("-pk"):
            agent = agents.get(run.pk, root)
            self._end(RunWriter.load(run, self.group.sender), agent, agent.ended_at)
        if self.group.run is not None:
            self._end(self._writer_of(None), root, max(item.ended_at for item in self.tree.items))

    def _end(self, writer: RunWriter, span: OtlpItem, at: datetime) -> None:
        """End a run at a time, with the outcome of a span."""
        facts = cast("SpanFacts", span.facts or {})
        if not writer.run.title and not writer.run.state.terminal:
            writer.projection.change_run(title=facts.get("name", "")[:200])
        error, answer = facts.get("error"), facts.get("output")
        result = contents.text_content(_answer_message(answer, "").content) if answer else None
        writer.end(
            at,
            error=(error["type"], error["text"]) if error else None,
            result=result[:_LONGEST_RESULT] if result else None,
            is_stopped=facts.get("is_stopped", False),
        )
        writer.flush()

    # --- Runs ---

    def _writer_of(self, owner: OtlpItem | None) -> RunWriter:
        """Return the writer of an agent's child run or, without an owner, of the trace's run. May open the run."""
        key = owner.item_id if owner is not None else ""
        if key not in self._writers:
            self._writers[key] = self._open_trace() if owner is None else self._open_child(owner)
        return self._writers[key]

    def _open_trace(self) -> RunWriter:
        """Return the writer of the trace's run. Opens the run if it does not exist."""
        if self.group.run is not None:
            return RunWriter.load(self.group.run, self.group.sender)
        writer = RunWriter.open(self.group.project, self._reported(None), self._session())
        self.group.run = writer.run
        self.group.save(update_fields=["run"])
        self.group.items.update(run=writer.run)
        return writer

    def _open_child(self, agent: OtlpItem) -> RunWriter:
        """Return the writer of an agent's child run. Opens the run, and reports it in its parent, if it is new."""
        reference = f"{self._reference()}:{agent.item_id}"
        enclosing = self.tree.place(agent).agent
        parent = self._writer_of(self.tree.owner(enclosing) if enclosing is not None else None)
        run = AgentRun.objects.filter(project=self.group.project_id, external_id=reference).first()
        if run is not None:
            # If another run has the reference, the agent's work is written into the enclosing run.
            return RunWriter.load(run, self.group.sender) if run.parent_run_id == parent.run.pk else parent
        reported = replace(self._reported(agent), external_id=reference, parent=parent.run)
        writer = RunWriter.open(self.group.project, reported, self._session())
        tool = self.tree.place(agent).tool
        if tool is None or tool.filed_under is not None:
            call_id = str((tool.facts or {}).get("call_id") or tool.item_id) if tool is not None else None
            parent.report(ChildRunStarted(run_id=reference, call_id=call_id), agent.started_at)
        return writer

    def _reported(self, agent: OtlpItem | None) -> ReportedRun:
        """Return the facts with which a run is opened. It is named after its first agent, or else after the program."""
        known = [item for item in self.tree.items if item.facts]
        agents = [agent] if agent is not None else [item for item in known if self.tree.kind(item) == AGENT]
        names = [(item.facts or {}).get("agent", "") for item in [*agents, *known]]
        names += [(item.facts or {}).get("program", "") for item in known]
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
        """Return the title of the trace, or else of the request to `agent` or the outermost span; may be empty."""
        titles = [str((item.facts or {}).get("title", "")) for item in known if agent is None]
        outermost = agent or self.tree.root() or self.tree.outermost_agent()
        title = title_of_request(_place((outermost.facts or {}).get("input"))) if outermost is not None else ""
        return next(filter(None, titles), title[:MAX_TITLE])

    def _reference(self) -> str:
        return f"otlp:{self.group.key}"

    def _session(self) -> str:
        sessions = ((item.facts or {}).get("session", "") for item in self.tree.items)
        return next((str(session) for session in sessions if session), "")

    # --- Work ---

    def _write(self, index: int, current: TracePlan, writer: RunWriter) -> None:
        """Write the unit of a plan with this index."""
        unit = current.units[index]
        writer.conversation.number_from(f"{unit.main.item_id}:{unit.kind}:")
        facts = cast("SpanFacts", unit.main.facts)
        if unit.kind == AGENT:
            self._write_agent(unit, facts, writer, has_request=unit.owner in current.owners_with_request)
        elif unit.kind == MODEL_CALL:
            self._write_model_call(unit, facts, writer, islice(current.units, index + 1, None))
        elif unit.kind == HANDOFF:
            self._write_handoff(unit, facts, writer, islice(current.units, index + 1, None))
        else:
            self._write_tool_call(unit.main, facts, writer)

    def _write_agent(self, unit: Unit, facts: SpanFacts, writer: RunWriter, *, has_request: bool) -> None:
        """Write the name of an outermost agent and the session of any agent into the run that they belong to.

        Also write the agent's request, unless the run has one, or a model call of the plan (`has_request`) has it.
        """
        projection, agent = writer.projection, facts.get("agent", "")
        config = projection.run.agent_config
        is_first = unit.owner is None and self.tree.outermost_agent() is unit.main
        if agent and is_first and config.get("agent_id") != agent:
            # The agent's span arrived after its first calls, whose run was named after the program.
            projection.change_run(agent_config={**config, "agent_id": agent})
        if not projection.run.session_id and facts.get("session"):
            # Masking of secrets can have made the text longer.
            projection.change_run(session_id=facts["session"][:128])
        if not writer.has_request and not has_request:
            self._write_request(facts.get("input"), writer, unit.main.started_at)

    def _write_request(self, value: Any, writer: RunWriter, at: datetime, *, also: Any = None) -> None:
        """Write the new messages of a request. `also`: the response, which may repeat the system message."""
        open_calls = writer.conversation.open_calls
        messages = [*instructions_of(_place(also)), *_request_messages(value)]
        sent = [with_call_id(message, open_calls) for message in messages]
        writer.apply_request(writer.conversation.add_request(sent, at))
        writer.has_request = writer.has_request or any(message.role == "user" for message in sent)

    def _write_model_call(self, unit: Unit, facts: SpanFacts, writer: RunWriter, following: Iterable[Unit]) -> None:
        """Write a request and its answer, or its error. `following`: the later units of the plan."""
        main, output = unit.main, facts.get("output")
        is_agent = self.tree.kind(main) == AGENT
        if not (is_agent and writer.has_request):
            self._write_request(facts.get("input"), writer, main.started_at, also=output)
        error = facts.get("error")
        if error and not output:
            writer.apply([writer.conversation.error(error["type"], error["text"], main.ended_at)])
            if not unit.counted:
                return
        usage: dict[str, int] = {}
        tier: dict[str, str] = {}
        costs = []
        for reports in unit.counted:
            for item in reversed(reports):
                tier |= (item.facts or {}).get("tier") or {}
            for name, count in merged_usage(reports).items():
                usage[name] = usage.get(name, 0) + count
            known = (read_cost((item.facts or {}).get("cost")) for item in reports)
            costs += [cost for cost in known if cost is not None][:1]
        answer = AnswerFacts(
            model=_model_of(unit),
            usage={**usage, **tier},
            cost=sum(costs) if costs else facts.get("cost"),
            began_at=main.started_at,
            at=main.ended_at,
            call_names=call_identity.call_names(unit),
            finish_reason=facts.get("finish_reason") or finish_reason_in(_place(output)),
        )
        message = _answer_message(output, main.item_id)
        if output is None:
            # By default, programs send no contents. The calls are derived from the tools that run next.
            message = replace(message, calls=calls_after(unit, following, set(writer.conversation.open_calls)))
        writer.apply(writer.conversation.add(message, answer))

    def _write_handoff(self, unit: Unit, facts: SpanFacts, writer: RunWriter, following: Iterable[Unit]) -> None:
        """Write a handoff, and close the call that requested it unless a later request has its result."""
        from_agent, to_agent = facts.get("from_agent", ""), facts.get("to_agent", "")
        call_id = handoff_call(to_agent, writer.conversation.open_calls)
        handoff = Handoff(from_agent=from_agent or None, to_agent=to_agent or None, call_id=call_id)
        writer.report(handoff, unit.main.ended_at)
        later = (one for one in following if one.kind == MODEL_CALL and one.owner is unit.owner)
        if call_id is not None and not any((one.main.facts or {}).get("input") for one in later):
            message = ChatMessage(role="tool", content=to_agent, call_ids=[call_id])
            writer.apply(writer.conversation.add(message, AnswerFacts(at=unit.main.ended_at)))

    def _write_tool_call(self, tool: OtlpItem, facts: SpanFacts, writer: RunWriter) -> None:
        """Write a tool result. Before it, write the call if no answer requested it, and the agents that it started."""
        conversation = writer.conversation
        times = AnswerFacts(began_at=tool.started_at, at=tool.ended_at)
        call_id = facts.get("call_id", "")
        if not call_id:
            own = tool.item_id if tool.item_id in conversation.open_calls else ""
            call_id = own or open_call(facts["tool"], conversation.open_calls)
        if call_id not in conversation.open_calls:
            call_id = same_call(facts, conversation.open_calls) or call_id or tool.item_id
        if call_id not in conversation.open_calls:
            writer.apply([conversation.unrequested_call(call_id, facts["tool"], facts.get("arguments"), times)])
        facts["call_id"] = call_id
        for agent in self.tree.started_by(tool):
            reference = f"{self._reference()}:{agent.item_id}"
            writer.report(ChildRunStarted(run_id=reference, call_id=call_id), agent.started_at)
        error, result = facts.get("error"), facts.get("result")
        output = error["text"] if error and not result else result
        text = output if isinstance(output, str) else "" if output is None else canonical(output)
        name, has_failed = facts["tool"], bool(error)
        message = ChatMessage(role="tool", content=text, call_ids=[call_id], tool_name=name, has_failed=has_failed)
        writer.apply(conversation.add(message, times))


def _facts_to_keep(item: OtlpItem) -> dict[str, Any] | None:
    """Return the facts of a filed span that the end of a run, or a child run of a tool call, needs; None if none."""
    names = ("name", "error", "is_stopped", "output") if item.kind == AGENT or not item.parent_id else ()
    names = (*names, "call_id") if item.kind == TOOL_CALL else names
    return {name: (item.facts or {})[name] for name in names if (item.facts or {}).get(name)} or None


def _model_of(unit: Unit) -> str:
    counted = [item for reports in unit.counted for item in reports]
    models = ((item.facts or {}).get("model", "") for item in [unit.main, *counted, *unit.items])
    return next((model for model in models if model), "")


def _place(value: Any) -> JsonPlace:
    return JsonPlace(_NO_FILE, value)


def _request_messages(value: Any) -> list[ChatMessage]:
    """Return the messages of a request. An invalid request becomes one message with its JSON."""
    try:
        return sent_messages(_place(value), {})
    except ImportRefused:
        return [ChatMessage(role="user", content=canonical(value))]


def _answer_message(value: Any, prefix: str) -> ChatMessage:
    """Return the answer in an output, with unique call IDs. An invalid output becomes a text with its JSON."""
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
