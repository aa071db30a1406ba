"""What a tool answers when nobody waits for it any more: kept in the log, as nothing but what it is.

The run may have been taken over, stopped or ended meanwhile, or the call given up; its
result is another one, or stays unknown. Who has to say what came of such a call can read here what its tool said.
"""

from __future__ import annotations

import logging

from django.db import Error, connections, transaction

from runs.lifecycle.transitions import PHASES
from runs.models import AgentRun, AgentRunToolCall
from runs.tools.base import ToolResult
from runs.tools.output import Output
from timeline import log
from timeline.errors import LogError
from timeline.events.tool import ToolOutput
from timeline.log import Entry
from timeline.models import Source
from timeline.preview import preview

logger = logging.getLogger(__name__)


def keep(call: AgentRunToolCall, output: Output) -> None:
    """Never raises: nobody waits for this, and nothing depends on it."""
    try:
        _append(call, preview(_words(output))[0])
    except (Error, LogError) as error:
        logger.warning("a late tool output is lost: %s", type(error).__name__, extra={"run_id": str(call.run_id)})


def keep_and_close(call: AgentRunToolCall, result: ToolResult) -> None:
    """The same, in a thread whose connection nobody else closes."""
    try:
        keep(call, result.output)
    finally:
        connections.close_all()


def _append(call: AgentRunToolCall, text: str) -> None:
    """Without an epoch: it is no word of a worker about the run, so the fence does not keep it out."""
    with transaction.atomic():
        # Its row is locked, so that it does not end between the look and the event, which is late after an end.
        run = AgentRun.objects.select_for_update(no_key=True, of=("self",)).filter(pk=call.run_id).first()
        if run is None:
            return
        told = ToolOutput(call_id=call.call_id, text=text, late=True)
        entry = Entry(told, phase=PHASES[run.state], step=call.step_number, ref_id=call.pk, late=run.state.terminal)
        log.append(run.pk, [entry], source=Source.WORKER)


def _words(output: Output) -> str:
    """Of a list, the texts: this is for people."""
    return output if isinstance(output, str) else "\n".join(item for item in output if isinstance(item, str))
