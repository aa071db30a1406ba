"""The state of a replay player, for any kind of replay: the displayed event, and the times of the next events."""

from __future__ import annotations

from dataclasses import dataclass
from uuid import UUID

from django.http import HttpRequest

from runs.pages.timeline.fragments import seq_of
from runs.queries.replay_states import pauses_s
from timeline import log

#: Speeds of the player.
SPEEDS = (1, 2, 4, 8, 16, 32)
#: Number of events whose times a frame contains, so that the player knows when to request the next frame.
AHEAD = 500


@dataclass(frozen=True)
class PlayerMoment:
    """The current event of a replay."""

    seq: int
    last_seq: int
    #: Milliseconds from event `seq` to each of the next events, separated by spaces. Pauses are shortened.
    ahead: str

    @property
    def previous(self) -> int:
        return max(self.seq - 1, 1)

    @property
    def next(self) -> int:
        return min(self.seq + 1, self.last_seq)


def moment_of(request: HttpRequest, log_id: UUID, last_seq: int) -> tuple[PlayerMoment, str]:
    """Return the event that the URL selects with `seq`, by default the first. Add a notice if it does not exist."""
    asked = seq_of(request, "seq")
    seq = min(max(asked if asked is not None else 1, 1), last_seq)
    notice = "" if asked is None or asked == seq else f"Event {asked} does not exist. Showing event {seq}."
    return PlayerMoment(seq, last_seq, _ahead(log_id, seq)), notice


def _ahead(log_id: UUID, seq: int) -> str:
    times = log.events_of(log_id).filter(seq__gte=seq).values_list("ts", flat=True)[: AHEAD + 1]
    offset_ms, offsets = 0.0, []
    for pause_s in pauses_s(list(times)):
        offset_ms += pause_s * 1000
        offsets.append(str(round(offset_ms)))
    return " ".join(offsets)
