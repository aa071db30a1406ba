"""Trajectories in the Agent Trajectory Interchange Format (ATIF)."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

from pydantic_ai.messages import ToolCallPart

from runs.external import contents
from runs.external.importers.base import ImportedRun, ImportFile, Item
from runs.external.importers.conversation import AnswerFacts, ChatMessage, ImportedConversation
from runs.external.importers.json_place import JsonPlace, looks_like
from runs.statuses import RunStatus

#: Fields that identify a trajectory.
_NAMES = ("trajectory_id", "session_id")
_TOKENS = ("prompt_tokens", "completion_tokens", "cached_tokens")
#: Fields of a step's metrics that ATIF does not define, under the providers' names. The defined counts include them.
_EXTRA = ("cache_creation_input_tokens", "cache_creation", "reasoning_tokens", "service_tier", "speed")


class AtifImporter:
    name = "atif"
    title = "trajectories in the Agent Trajectory Interchange Format"

    def detect(self, file: ImportFile) -> bool:
        """Return whether the content declares itself as ATIF."""
        return looks_like(file, lambda value: value["schema_version"].startswith("ATIF") and "steps" in value)

    def read(self, file: ImportFile) -> Iterator[Item]:
        """Yield the run of a trajectory and the runs of its sub-agents. Raises `ImportRefused`."""
        yield from _read_trajectory(JsonPlace(file, file.document()), set())


def _read_trajectory(root: JsonPlace, known: set[str], parent: str = "", call_id: str = "") -> Iterator[Item]:
    """Yield the run of a trajectory and, below it, the runs of its sub-agents.

    `known`: the references of the runs so far; this run's reference is added. `parent`, `call_id`: the run and the call
    that spawned this one.
    """
    agent = root.at("agent")
    steps = list(root.at("steps").items())
    usage, cost = _totals(root)
    reference = root.run_reference(AtifImporter.name, root.at("trajectory_id").value or root.at("session_id").value)
    if reference in known:
        # A sub-agent with the session ID of its parent is identified by its content.
        reference = root.run_reference(AtifImporter.name)
    known.add(reference)
    head = ImportedRun(
        run_ref=reference,
        agent=agent.at("name").label(),
        model=agent.at("model_name").label(),
        session_id=root.at("session_id").label(),
        created_at=steps[0].at("timestamp").time() if steps else None,
        parent_ref=parent,
        parent_call_id=call_id,
        ended=RunStatus.COMPLETED,
        usage=usage,
        cost_usd=cost,
    )
    yield head
    conversation = ImportedConversation(head.run_ref)
    for step in steps:
        yield from _read_step(step, conversation, head.model)
    yield from conversation.close()
    calls = _calls_of_sub_agents(steps)
    for child in root.at("subagent_trajectories").items():
        ids = [child.at(name).label() for name in _NAMES]
        spawning_call = next((calls[one] for one in ids if one in calls), "")
        yield from _read_trajectory(child, known, head.run_ref, spawning_call)


def _calls_of_sub_agents(steps: Sequence[JsonPlace]) -> dict[str, str]:
    """Return the IDs of the calls that spawned sub-agents, by the ID of the sub-agent's trajectory."""
    calls: dict[str, str] = {}
    for step in steps:
        for result in step.at("observation", "results").items():
            for reference in result.at("subagent_trajectory_ref").items():
                for name in _NAMES:
                    calls[reference.at(name).label()] = result.at("source_call_id").text()
    calls.pop("", None)
    return calls


def _read_step(step: JsonPlace, conversation: ImportedConversation, model: str) -> Iterator[Item]:
    """Yield the events of a step: of its message, and of the results of its calls."""
    source, at = step.at("source").text(None), step.at("timestamp").time()
    content = _content(step.at("message").value)
    if source == "agent":
        calls = [_call(call) for call in step.at("tool_calls").items()]
        thinking = step.at("reasoning_content").text()
        message = ChatMessage(role="assistant", content=content, thinking=thinking, calls=calls)
        metrics = step.at("metrics")
        facts = AnswerFacts(
            model=step.at("model_name").label() or model,
            usage={
                **{name: metrics.at(name).value for name in _TOKENS},
                **{name: metrics.at("extra", name).value for name in _EXTRA},
            },
            cost=metrics.at("cost_usd").value,
            at=at,
        )
        yield from conversation.add_checked(message, step.at("tool_calls"), facts)
    elif source in ("system", "user"):
        yield from conversation.add(ChatMessage(role=source, content=content), AnswerFacts(at=at))  # type: ignore[arg-type]
    else:
        raise step.at("source").refuse(f"must be system, user or agent, not {source[:64]!r}")
    for result in step.at("observation", "results").items():
        yield from _read_result(result, conversation, AnswerFacts(at=at))


def _read_result(result: JsonPlace, conversation: ImportedConversation, facts: AnswerFacts) -> Iterator[Item]:
    """Yield the result of a call. A result that names no call belongs to the only open call, if there is one."""
    call_id = result.at("source_call_id").text()
    content = _content(result.at("content").value)
    if not call_id and len(conversation.open_calls) == 1:
        call_id = next(iter(conversation.open_calls))
    if not call_id:
        # The observation belongs to no call.
        yield from conversation.add(ChatMessage(role="user", content=content), facts)
        return
    message = ChatMessage(role="tool", content=content, call_ids=[call_id])
    yield from conversation.add_checked(message, result.at("source_call_id"), facts)


def _call(place: JsonPlace) -> ToolCallPart:
    call_id, name = place.at("tool_call_id").name(), place.at("function_name").name()
    return contents.call_part(call_id, name, place.at("arguments").value)


def _content(value: Any) -> Any:
    """Return a content with texts in place of its images, of which ATIF has only the file names."""
    if not isinstance(value, list):
        return value
    return [_block(block) if isinstance(block, dict) else block for block in value]


def _block(block: dict[str, Any]) -> Any:
    source = block.get("source")
    path = source.get("path") if isinstance(source, dict) else None
    return f"[image: {path}]" if block.get("type") == "image" and isinstance(path, str) else block


def _totals(root: JsonPlace) -> tuple[dict[str, Any], Any]:
    """Return the tokens and the cost of the whole trajectory, as far as its steps do not report them."""
    metrics = [step.at("metrics") for step in root.at("steps").items()]
    final = root.at("final_metrics")
    has_tokens = any(one.at(name).value is not None for one in metrics for name in _TOKENS)
    has_cost = any(one.at("cost_usd").value is not None for one in metrics)
    usage = {} if has_tokens else {name: final.at(f"total_{name}").value for name in _TOKENS}
    return usage, None if has_cost else final.at("total_cost_usd").value
