"""Events as AG-UI messages, with whole texts from the rows, and the state of the log before them."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from uuid import UUID

from runs.conversation.message_text import text_of
from runs.models import AgentRun, AgUiRun
from runs.queries.agent_dialect import whole_texts
from runs.queries.json_columns import to_json
from runs.queries.masking import mask_rows
from timeline import log
from timeline.dialects.ag_ui_blocks import ANCHORS, MARKERS, TEXTS, LogState
from timeline.dialects.ag_ui_output import AgUiRows, ClientRun, ag_ui_messages
from timeline.events import EventType
from timeline.models import Event

#: Events before a batch that are searched. A message that is longer continues as a new one.
MAX_SEARCHED = 5000
_TURN = (EventType.LLM_TURN_START,)


def ag_ui_texts(log_id: UUID, batch: Sequence[Event]) -> list[list[str]]:
    """Return the messages of each event of a log as JSON texts, with secrets masked."""
    rows = AgUiRows(whole_texts(log_id, batch), _client_runs(log_id), _lineage(log_id))
    messages = ag_ui_messages(batch, rows, _state_before(log_id, batch[0].seq))
    texts = iter(mask_rows([to_json(message) for of_event in messages for message in of_event]))
    return [[next(texts) for _ in of_event] for of_event in messages]


def _state_before(log_id: UUID, seq: int) -> LogState:
    if seq == 1:
        return LogState()
    marker = _last(log_id, seq, MARKERS)
    turn, anchor, text = (event.seq if (event := _last(log_id, seq, types)) else 0 for types in (_TURN, ANCHORS, TEXTS))
    return LogState.after(marker, turn=turn, anchor=anchor, text=text)


def _last(log_id: UUID, before: int, types: Iterable[str]) -> Event | None:
    """Return the last event of these types before a sequence number."""
    searched = log.events_of(log_id).filter(seq__lt=before, seq__gte=before - MAX_SEARCHED, late=False)
    return searched.filter(type__in=list(types)).order_by("-seq").first()


def _client_runs(log_id: UUID) -> list[ClientRun]:
    rows = AgUiRun.objects.filter(run=log_id).select_related("message").order_by("after_seq")
    return [
        ClientRun(
            thread_id=row.thread_id,
            run_id=row.client_run_id,
            after_seq=row.after_seq,
            message_ref=row.message_id,
            message_id=row.client_message_id,
            text="" if row.message is None else text_of(row.message.content),
        )
        for row in rows
    ]


def _lineage(log_id: UUID) -> str:
    return str(AgentRun.objects.values_list("root_run_id", flat=True).filter(pk=log_id).first() or log_id)
