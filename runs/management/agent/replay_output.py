"""The output of `agentops replay`: the stored events at their recorded pace, each with the resulting state."""

from __future__ import annotations

import json
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from datetime import datetime
from functools import partial
from typing import Any

from agentops.accounts.management.base import EXIT_INTERRUPTED, AgentopsCommand, printable
from runs.flows.kernel.snapshot import NodeStatus
from runs.management.agent.references import find_run_or_flow_run
from runs.management.agent.tail import BATCH, row
from runs.models import AgentRun, FlowRun
from runs.queries import replay_states
from runs.queries.flow_states import FlowReplay, FlowReplayState
from runs.queries.json_columns import to_json
from runs.queries.masking import mask_rows
from runs.queries.replay_states import MAX_PAUSE_S, ReplayState
from timeline import log, outgoing
from timeline.models import Event, Log

State = ReplayState | FlowReplayState


@dataclass
class Pace:
    """Waits between events as long as recorded, divided by the speed. Long pauses are shortened."""

    #: None: no waits.
    speed: int | None
    before: datetime | None = None
    shortened: int = 0

    def pause_before(self, event: Event) -> float:
        """Return the seconds to wait before this event."""
        before, self.before = self.before, event.ts
        if before is None or self.speed is None:
            return 0.0
        [pause_s] = replay_states.pauses_s([before, event.ts])
        self.shortened += (event.ts - before).total_seconds() > MAX_PAUSE_S
        return pause_s / self.speed


def replay(command: AgentopsCommand, options: dict[str, Any]) -> None:
    run = find_run_or_flow_run(options["run"])
    last_seq = Log.objects.values_list("last_seq", flat=True).get(pk=run.pk)
    end = min(options["end"] or last_seq, last_seq)
    pace = Pace(None if options["at_once"] else options["speed"])
    line = _json_line if options["json"] else _text_line
    try:
        for event, state in _states(run, options["begin"], end):
            if pause_s := pace.pause_before(event):
                command.stdout.flush()
                time.sleep(pause_s)
            command.stdout.write(line(event, state))
    except KeyboardInterrupt:
        raise SystemExit(EXIT_INTERRUPTED) from None
    if pace.shortened:
        pauses = "1 pause" if pace.shortened == 1 else f"{pace.shortened} pauses"
        were, limit = "was" if pace.shortened == 1 else "were", f"{MAX_PAUSE_S:.0f} s"
        command.stderr.write(f"agentops: {pauses} of more than {limit} {were} shortened to {limit}")


def _states(run: AgentRun | FlowRun, begin: int, end: int) -> Iterator[tuple[Event, State]]:
    """Yield the events from `begin` to `end` with the resulting states. The log is read in batches and folded once."""
    after = max(begin - 1, 0)
    continued = _fold(run, after)
    while after < end and (batch := log.read(run.pk, after=after, limit=min(BATCH, end - after))):
        after = batch[-1].seq
        states = [state for _, state in continued(batch)]
        # After the fold: masking changes the payloads.
        yield from zip(outgoing.mask_events(batch), states, strict=True)


def _fold(run: AgentRun | FlowRun, after: int) -> Callable[[list[Event]], Iterator[tuple[Event, State]]]:
    """Return the function that folds the events after event `after`, batch by batch."""
    if isinstance(run, FlowRun):
        return FlowReplay(run, after).continued
    return partial(replay_states.continued, replay_states.frame_at(run.pk, after))


def _json_line(event: Event, state: State) -> str:
    """Return the event as in the API, with all characters except printable ASCII escaped."""
    [masked] = mask_rows([to_json({**log.wire(event), "state": state.as_json()})])
    return json.dumps(json.loads(masked))


def _text_line(event: Event, state: State) -> str:
    """Return the event as `agent tail` prints it, with the main facts of the resulting state."""
    return f"{row(event)}\t{printable(_facts(state))}"


def _facts(state: State) -> str:
    """Return status, messages, open calls and tokens of a run; of a flow run, its status and its nodes."""
    if isinstance(state, FlowReplayState):
        running = ", ".join(state.nodes(NodeStatus.RUNNING)) or "none"
        return f"{state.status}, {len(state.nodes(NodeStatus.DONE))} nodes done, running: {running}"
    tokens = state.tokens["input_tokens"] + state.tokens["output_tokens"]
    return f"{state.status}, {state.message_count} messages, {len(state.open_calls)} open calls, {tokens} tokens"
