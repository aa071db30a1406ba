"""The rows in which a site stores a graph: of a checkpoint, of the channel values that it names, of pending writes."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, cast

from langchain_core.runnables import RunnableConfig
from langgraph.checkpoint.base import (
    WRITES_IDX_MAP,
    ChannelVersions,
    Checkpoint,
    CheckpointMetadata,
    CheckpointTuple,
    PendingWrite,
    get_checkpoint_metadata,
    writes_sort_key,
)

from agentops.durable.langgraph.encoding import StateEncoding

#: Maximum characters of a row's text; longer ones are stored in pieces.
MAX_TEXT = 1024 * 1024
#: Characters up to which a text is stored in the checkpoint itself.
SMALL_TEXT = 200
#: Rows and characters of one operation.
OPERATION_ROWS, OPERATION_SIZE = 100, MAX_TEXT

Row = dict[str, Any]


@dataclass(frozen=True)
class CheckpointPlace:
    """Where a checkpoint is: its thread, its sub-graph, and its ID, which may be empty for the newest one."""

    thread: str
    namespace: str = ""
    checkpoint: str = ""

    @classmethod
    def of(cls, config: RunnableConfig) -> CheckpointPlace:
        """Return the place that a configuration names."""
        named = config["configurable"]
        return cls(str(named["thread_id"]), named.get("checkpoint_ns") or "", named.get("checkpoint_id") or "")

    def config(self) -> RunnableConfig:
        """Return the configuration that names the place."""
        named = {"thread_id": self.thread, "checkpoint_ns": self.namespace}
        return {"configurable": {**named, "checkpoint_id": self.checkpoint} if self.checkpoint else named}


def rows_of_checkpoint(
    encoding: StateEncoding,
    config: RunnableConfig,
    checkpoint: Checkpoint,
    metadata: CheckpointMetadata,
    new_versions: ChannelVersions,
) -> list[Row]:
    """Return the rows of a checkpoint: its changed channel values, and then the checkpoint that names all of them."""
    place = CheckpointPlace.of(config)
    inline: dict[str, Any] = {}
    keys: list[str] = []
    rows: list[Row] = []
    for channel, value in checkpoint["channel_values"].items():
        version = checkpoint["channel_versions"].get(channel)
        if version is None or _is_small(value):
            inline[channel] = value
            continue
        keys.append(key := f"{channel}/{version}")
        if channel in new_versions:
            rows += _pieces(encoding.dumps(value), kind="channel", namespace=place.namespace, key=key, keeps=True)
    stored = get_checkpoint_metadata(config, metadata)
    counted = metadata.get("counters_since_delta_snapshot") or {}
    facts = {
        "parent": place.checkpoint or None,
        "metadata": stored,
        "channels": keys,
        "deltas": [channel for channel in counted if channel not in checkpoint["channel_values"]],
    }
    text = encoding.dumps({**checkpoint, "channel_values": inline})
    if len(text) > MAX_TEXT:
        raise ValueError(f"the checkpoint has {len(text):,} characters without its channels, of at most {MAX_TEXT:,}")
    row = {"kind": "checkpoint", "namespace": place.namespace, "checkpoint": checkpoint["id"]}
    return [*rows, {**row, "facts": facts, "text": text}]


def _is_small(value: Any) -> bool:
    """Whether a value is stored in the checkpoint, because a row would take more space."""
    return (
        value is None or isinstance(value, bool | int | float) or (isinstance(value, str) and len(value) < SMALL_TEXT)
    )


def rows_of_writes(
    encoding: StateEncoding, place: CheckpointPlace, writes: Sequence[tuple[str, Any]], task_id: str, task_path: str
) -> list[Row]:
    """Return the rows of the pending writes of a task."""
    rows: list[Row] = []
    indexes = [WRITES_IDX_MAP.get(channel, position) for position, (channel, _) in enumerate(writes)]
    count = sum(index >= 0 for index in indexes)
    for index, (channel, value) in zip(indexes, writes, strict=True):
        text = encoding.dumps(value)
        facts = {"task": task_id, "index": index, "channel": channel, "path": task_path}
        facts |= {"of": count, "length": len(text)}
        row = {"kind": "write", "namespace": place.namespace, "checkpoint": place.checkpoint, "facts": facts}
        # Special writes, such as errors, replace earlier ones.
        rows += _pieces(text, **row, key=f"{task_id}/{index}", keeps=index >= 0)
    return rows


def _pieces(text: str, **row: Any) -> Iterator[Row]:
    for index, start in enumerate(range(0, len(text), MAX_TEXT)):
        yield {**row, "index": index, "text": text[start : start + MAX_TEXT]}


def operations(rows: Sequence[Row], **members: Any) -> list[dict[str, Any]]:
    """Return the operations that store rows, in order."""
    groups: list[list[Row]] = []
    size = OPERATION_SIZE
    for row in rows:
        size += len(row["text"])
        if size > OPERATION_SIZE or len(groups[-1]) == OPERATION_ROWS:
            groups.append([])
            size = len(row["text"])
        groups[-1].append(row)
    return [{"op": "put", **members, "values": group} for group in groups]


def tuples_of(encoding: StateEncoding, page: Mapping[str, Any], thread: str | None) -> Iterator[CheckpointTuple]:
    """Yield the checkpoints of an answer of the site. `thread`: their thread; None for that of each."""
    channels = {(each["thread"], each["namespace"], each["key"]): each["text"] for each in page["channels"]}
    for row in page["checkpoints"]:
        place = CheckpointPlace(row["thread"] if thread is None else thread, row["namespace"], row["id"])
        checkpoint = cast("Checkpoint", encoding.loads(row["text"]))
        for key in row["facts"].get("channels") or ():
            text = channels.get((row["thread"], row["namespace"], key))
            if text is not None:
                checkpoint["channel_values"][key.rpartition("/")[0]] = encoding.loads(text)
        parent = row["facts"].get("parent")
        yield CheckpointTuple(
            config=place.config(),
            checkpoint=checkpoint,
            metadata=cast("CheckpointMetadata", row["facts"].get("metadata") or {}),
            parent_config=CheckpointPlace(place.thread, place.namespace, parent).config() if parent else None,
            pending_writes=_writes(encoding, row["writes"]),
        )


def _writes(encoding: StateEncoding, rows: Sequence[Mapping[str, Any]]) -> list[PendingWrite]:
    def order(row: Mapping[str, Any]) -> tuple[str, str, int]:
        facts = row["facts"]
        return writes_sort_key(facts.get("path") or "", facts["task"], facts["index"])

    return [
        (row["facts"]["task"], row["facts"]["channel"], encoding.loads(row["text"]))
        for row in sorted(_of_whole_tasks(rows), key=order)
    ]


def _of_whole_tasks(rows: Sequence[Mapping[str, Any]]) -> Iterator[Mapping[str, Any]]:
    """Yield the special writes, and the writes of each task if all of them are stored.

    Large ones take several requests. After a crash between two of them, LangGraph would regard the task as done.
    """
    whole = [row for row in rows if len(row["text"]) == row["facts"].get("length", len(row["text"]))]
    counts = Counter(row["facts"]["task"] for row in whole if row["facts"]["index"] >= 0)
    for row in whole:
        facts = row["facts"]
        if facts["index"] < 0 or counts[facts["task"]] >= facts.get("of", 0):
            yield row
