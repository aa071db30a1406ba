"""The history of channels that LangGraph stores as deltas: what the ancestors of a checkpoint have written to them."""

from __future__ import annotations

from collections.abc import Sequence

from langgraph.checkpoint.base import CheckpointTuple, DeltaChannelHistory, PendingWrite

from agentops.durable.langgraph.rows import CheckpointPlace


class ChannelWalk:
    """Collects the writes to channels on the way from a checkpoint to the last whole value of each."""

    def __init__(self, channels: Sequence[str], target: CheckpointTuple | None) -> None:
        self._writes: dict[str, list[list[PendingWrite]]] = {channel: [] for channel in channels}
        self._seeds: dict[str, object] = {}
        self._missing = set(channels)
        self._parent = None if target is None else target.parent_config

    def is_complete(self, checkpoint: CheckpointTuple) -> bool:
        """Take the next checkpoint, newest first, if it is an ancestor. Return whether no further one is needed."""
        if not self._missing or self._parent is None:
            return True
        if CheckpointPlace.of(checkpoint.config).checkpoint != CheckpointPlace.of(self._parent).checkpoint:
            return False
        for channel in list(self._missing):
            self._writes[channel].append([each for each in checkpoint.pending_writes or () if each[1] == channel])
            if channel in checkpoint.checkpoint["channel_values"]:
                self._seeds[channel] = checkpoint.checkpoint["channel_values"][channel]
                self._missing.discard(channel)
        self._parent = checkpoint.parent_config
        return not self._missing or self._parent is None

    @property
    def history(self) -> dict[str, DeltaChannelHistory]:
        """The writes of each channel, oldest first, and the value that they change."""
        histories: dict[str, DeltaChannelHistory] = {}
        for channel, groups in self._writes.items():
            history: DeltaChannelHistory = {"writes": [write for group in reversed(groups) for write in group]}
            if channel in self._seeds:
                history["seed"] = self._seeds[channel]
            histories[channel] = history
        return histories
