"""The output of a tool that arrives too late, kept as an event in the log.

The run was taken over, stopped or ended, or the call timed out. So the call has another result, or an unknown outcome.
The event helps the person who resolves that outcome.
"""

from __future__ import annotations

import logging

from django.db import Error, connections, transaction

from runs.lifecycle.moves import PHASES
from runs.models import AgentRun, AgentRunToolCall
from runs.tools.base import ToolResult
from runs.tools.output import Output
from timeline import log
from timeline.errors import LeaseLost, LogNotFound
from timeline.events.tool import ToolOutput
from timeline.log import Entry
from timeline.models import Source
from timeline.preview import preview

logger = logging.getLogger(__name__)


def keep(call: AgentRunToolCall, output: Output) -> None:
    """Append the output to the log. Never raises: nothing depends on it."""
    try:
        _append(call, preview(_text_of(output))[0])
    except (Error, LogNotFound, LeaseLost) as error:
        logger.warning("a late tool output is lost: %s", type(error).__name__, extra={"run_id": str(call.run_id)})


def keep_and_close(call: AgentRunToolCall, result: ToolResult) -> None:
    """Call `keep` in a thread, and close the thread's database connections."""
    try:
        keep(call, result.output)
    finally:
        connections.close_all()


def _append(call: AgentRunToolCall, text: str) -> None:
    """Append the event without an epoch, so that the fence does not reject it."""
    with transaction.atomic():
        # Locked, so that the run does not end between this query and the event, which says whether the output was late.
        run = AgentRun.objects.select_for_update(no_key=True, of=("self",)).filter(pk=call.run_id).first()
        if run is None:
            return
        payload = ToolOutput(call_id=call.call_id, text=text, late=True)
        entry = Entry(payload, phase=PHASES[run.state], step=call.step_number, ref_id=call.pk, late=run.state.terminal)
        log.append(run.pk, [entry], source=Source.WORKER)


def _text_of(output: Output) -> str:
    """Return the texts of an output."""
    return output if isinstance(output, str) else "\n".join(item for item in output if isinstance(item, str))
