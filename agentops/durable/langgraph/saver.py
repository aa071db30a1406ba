"""`AgentopsSaver`: the checkpointer of LangGraph that stores the states of graphs on a site."""

from __future__ import annotations

import json
import random
import uuid
from collections.abc import AsyncIterator, Iterator, Mapping, Sequence
from typing import Any

from langchain_core.runnables import RunnableConfig
from langgraph.checkpoint.base import (
    BaseCheckpointSaver,
    ChannelVersions,
    Checkpoint,
    CheckpointMetadata,
    CheckpointTuple,
    DeltaChannelHistory,
)
from langgraph.checkpoint.serde.base import SerializerProtocol

from agentops.durable.codec import Codec
from agentops.durable.langgraph import threads
from agentops.durable.langgraph.context import served_run
from agentops.durable.langgraph.deltas import ChannelWalk
from agentops.durable.langgraph.encoding import StateEncoding
from agentops.durable.langgraph.rows import (
    CheckpointPlace,
    Row,
    operations,
    rows_of_checkpoint,
    rows_of_writes,
    tuples_of,
)
from agentops.durable.langgraph.served import ServedRun
from agentops.durable.langgraph.threads import ThreadStore


class AgentopsSaver(BaseCheckpointSaver[str]):
    """Stores checkpoints, channel values and pending writes on a site: `builder.compile(checkpointer=AgentopsSaver())`.

    In a run that `serve` executes, they belong to the journal of the run: the thread is the run's lineage. Elsewhere
    they belong to the thread that the configuration names, in the project of the key. The ID of a run as `thread_id`
    reads the state of this run; a state that is stored for it, as `update_state` does, forks the run.
    """

    def __init__(
        self,
        *,
        url: str | None = None,
        key: str | None = None,
        serde: SerializerProtocol | None = None,
        codec: Codec | None = None,
        http_options: Mapping[str, Any] | None = None,
    ) -> None:
        """Prepare a saver, without a connection.

        `url`, `key`: for threads outside of runs: the site, and an API key of scope `work`; by default, the variables
        `AGENTOPS_URL` and `AGENTOPS_API_KEY`. `serde`: the serializer. `codec`: encodes states once more; by default,
        the codec of `serve`.
        """
        super().__init__(serde=serde)
        self.codec = codec
        self._store = ThreadStore(url, key, http_options or {})
        #: Writes to checkpoints of runs, which are stored with the next checkpoint: it forks the run.
        self._deferred: dict[CheckpointPlace, list[Row]] = {}

    # --- Asynchronous methods ---

    async def aget_tuple(self, config: RunnableConfig) -> CheckpointTuple | None:
        """Return the checkpoint that the configuration names, or the newest one; None without one."""
        place = CheckpointPlace.of(config)
        if (served := self._served(place.thread)) is not None:
            return await served.get(self._encoding(served), place)
        page = await self._store.apage(_query(place, limit=1))
        return next(tuples_of(self._encoding(), page, place.thread), None)

    async def alist(
        self,
        config: RunnableConfig | None,
        *,
        filter: dict[str, Any] | None = None,  # noqa: A002 - the name of LangGraph
        before: RunnableConfig | None = None,
        limit: int | None = None,
    ) -> AsyncIterator[CheckpointTuple]:
        """Yield checkpoints, newest first: of a thread, or without a configuration, of all threads of the project."""
        query = _list_query(config, filter, before, limit)
        thread = None if config is None else CheckpointPlace.of(config).thread
        served = self._served(thread)
        pages = threads.apages(self._store, query) if served is None else served.pages(query)
        left = limit
        async for page in pages:
            for each in tuples_of(self._encoding(served), page, thread):
                if left == 0:
                    return
                left = None if left is None else left - 1
                yield each
            if left == 0:
                return

    async def aput(
        self,
        config: RunnableConfig,
        checkpoint: Checkpoint,
        metadata: CheckpointMetadata,
        new_versions: ChannelVersions,
    ) -> RunnableConfig:
        """Store a checkpoint, and return the configuration that names it."""
        place = CheckpointPlace.of(config)
        served = self._served(place.thread)
        rows = rows_of_checkpoint(self._encoding(served), config, checkpoint, metadata, new_versions)
        if served is not None:
            served.put(place.namespace, rows)
            return CheckpointPlace(place.thread, place.namespace, checkpoint["id"]).config()
        results = await self._store.aperform(_put(place, [*rows, *self._deferred.pop(place, ())]))
        return CheckpointPlace(results[-1]["thread"], place.namespace, checkpoint["id"]).config()

    async def aput_writes(
        self, config: RunnableConfig, writes: Sequence[tuple[str, Any]], task_id: str, task_path: str = ""
    ) -> None:
        """Store the pending writes of a task."""
        place = CheckpointPlace.of(config)
        served = self._served(place.thread)
        rows = rows_of_writes(self._encoding(served), place, writes, task_id, task_path)
        if served is not None:
            served.put_writes(place.namespace, rows, task_id, writes)
        else:
            self._defer(place, rows, await self._store.aperform(_put(place, rows)))

    async def adelete_thread(self, thread_id: str) -> None:
        """Delete a thread."""
        await self._store.aperform([{"op": "delete", "thread": thread_id}])

    async def acopy_thread(self, source_thread_id: str, target_thread_id: str) -> None:
        """Copy a thread, or the state of a run, to a thread, whose own values are deleted."""
        await self._store.aperform([{"op": "copy", "thread": source_thread_id, "to": target_thread_id}])

    async def adelete_for_runs(self, run_ids: Sequence[str]) -> None:
        """Delete the checkpoints of threads whose metadata have one of these values as `run_id`."""
        if run_ids:
            await self._store.aperform([{"op": "delete_runs", "run_ids": list(run_ids)}])

    async def aprune(self, thread_ids: Sequence[str], *, strategy: str = "keep_latest") -> None:
        """Delete all but the newest checkpoint of each sub-graph, or with the strategy `delete`, everything."""
        await self._store.aperform(_prune(thread_ids, strategy))

    async def aget_delta_channel_history(
        self, *, config: RunnableConfig, channels: Sequence[str]
    ) -> Mapping[str, DeltaChannelHistory]:
        """Return what the ancestors of a checkpoint have written to channels since their last whole values."""
        target = await self.aget_tuple(config) if channels else None
        walk = ChannelWalk(channels, target)
        if target is not None:
            async for each in self.alist(_without_id(target.config), before=target.config):
                if walk.is_complete(each):
                    break
        return walk.history

    async def aclose(self) -> None:
        """Close the connections of the running event loop."""
        await self._store.aclose()

    # --- Synchronous methods ---

    def get_tuple(self, config: RunnableConfig) -> CheckpointTuple | None:
        """Return the checkpoint that the configuration names, or the newest one; None without one."""
        place = CheckpointPlace.of(config)
        if (served := self._served(place.thread)) is not None:
            return served.wait_for(self.aget_tuple(config))
        page = self._store.page(_query(place, limit=1))
        return next(tuples_of(self._encoding(), page, place.thread), None)

    def list(
        self,
        config: RunnableConfig | None,
        *,
        filter: dict[str, Any] | None = None,  # noqa: A002 - the name of LangGraph
        before: RunnableConfig | None = None,
        limit: int | None = None,
    ) -> Iterator[CheckpointTuple]:
        """Yield checkpoints, newest first: of a thread, or without a configuration, of all threads of the project."""
        thread = None if config is None else CheckpointPlace.of(config).thread
        if (served := self._served(thread)) is not None:
            yield from served.wait_for(_collected(self.alist(config, filter=filter, before=before, limit=limit)))
            return
        left = limit
        for page in threads.pages(self._store, _list_query(config, filter, before, limit)):
            for each in tuples_of(self._encoding(), page, thread):
                if left == 0:
                    return
                left = None if left is None else left - 1
                yield each
            if left == 0:
                return

    def put(
        self,
        config: RunnableConfig,
        checkpoint: Checkpoint,
        metadata: CheckpointMetadata,
        new_versions: ChannelVersions,
    ) -> RunnableConfig:
        """Store a checkpoint, and return the configuration that names it."""
        place = CheckpointPlace.of(config)
        if (served := self._served(place.thread)) is not None:
            return served.wait_for(self.aput(config, checkpoint, metadata, new_versions))
        rows = rows_of_checkpoint(self._encoding(), config, checkpoint, metadata, new_versions)
        results = self._store.perform(_put(place, [*rows, *self._deferred.pop(place, ())]))
        return CheckpointPlace(results[-1]["thread"], place.namespace, checkpoint["id"]).config()

    def put_writes(
        self, config: RunnableConfig, writes: Sequence[tuple[str, Any]], task_id: str, task_path: str = ""
    ) -> None:
        """Store the pending writes of a task."""
        place = CheckpointPlace.of(config)
        if (served := self._served(place.thread)) is not None:
            served.wait_for(self.aput_writes(config, writes, task_id, task_path))
        else:
            rows = rows_of_writes(self._encoding(), place, writes, task_id, task_path)
            self._defer(place, rows, self._store.perform(_put(place, rows)))

    def delete_thread(self, thread_id: str) -> None:
        """Delete a thread."""
        self._store.perform([{"op": "delete", "thread": thread_id}])

    def copy_thread(self, source_thread_id: str, target_thread_id: str) -> None:
        """Copy a thread, or the state of a run, to a thread, whose own values are deleted."""
        self._store.perform([{"op": "copy", "thread": source_thread_id, "to": target_thread_id}])

    def delete_for_runs(self, run_ids: Sequence[str]) -> None:
        """Delete the checkpoints of threads whose metadata have one of these values as `run_id`."""
        if run_ids:
            self._store.perform([{"op": "delete_runs", "run_ids": [*run_ids]}])

    def prune(self, thread_ids: Sequence[str], *, strategy: str = "keep_latest") -> None:
        """Delete all but the newest checkpoint of each sub-graph, or with the strategy `delete`, everything."""
        self._store.perform(_prune(thread_ids, strategy))

    def get_delta_channel_history(
        self, *, config: RunnableConfig, channels: Sequence[str]
    ) -> Mapping[str, DeltaChannelHistory]:
        """Return what the ancestors of a checkpoint have written to channels since their last whole values."""
        target = self.get_tuple(config) if channels else None
        walk = ChannelWalk(channels, target)
        if target is not None:
            for each in self.list(_without_id(target.config), before=target.config):
                if walk.is_complete(each):
                    break
        return walk.history

    def close(self) -> None:
        """Close the connections of synchronous requests."""
        self._store.close()

    # --- Helpers ---

    def get_next_version(self, current: str | None, channel: None) -> str:
        """Return the next version of a channel: increasing, and unique among the branches of a forked thread."""
        number = int(str(current).partition(".")[0]) if current else 0
        return f"{number + 1:032}.{random.getrandbits(53):016}"

    def _defer(self, place: CheckpointPlace, rows: Sequence[Row], results: Sequence[Mapping[str, Any]]) -> None:
        """Keep the writes that the site has not stored, because they belong to a run."""
        if any(result.get("deferred") for result in results):
            self._deferred.setdefault(place, []).extend(rows)

    def _served(self, thread: str | None) -> ServedRun | None:
        """Return the run that this process executes in this context, if it is the thread."""
        served = served_run()
        return served if served is not None and thread == served.thread else None

    def _encoding(self, served: ServedRun | None = None) -> StateEncoding:
        return StateEncoding(self.serde, self.codec or (None if served is None else served.codec))


def _query(place: CheckpointPlace, *, limit: int) -> dict[str, Any]:
    named = {"checkpoint": place.checkpoint} if place.checkpoint else {}
    return {"thread": place.thread, "namespace": place.namespace, "limit": limit, **named}


def _list_query(
    config: RunnableConfig | None, metadata: dict[str, Any] | None, before: RunnableConfig | None, limit: int | None
) -> dict[str, Any]:
    query: dict[str, Any] = {"limit": 100 if limit is None else max(1, min(limit, 100))}
    if config is not None:
        named = config["configurable"]
        members = {"thread": "thread_id", "namespace": "checkpoint_ns", "checkpoint": "checkpoint_id"}
        query |= {name: named[member] for name, member in members.items() if named.get(member) is not None}
    if before is not None and CheckpointPlace.of(before).checkpoint:
        query["before"] = CheckpointPlace.of(before).checkpoint
    return {**query, "metadata": json.dumps(metadata)} if metadata else query


def _put(place: CheckpointPlace, rows: Sequence[dict[str, Any]]) -> list[dict[str, Any]]:
    puts = operations(rows, thread=place.thread, parent=place.checkpoint)
    if not _may_be_run(place.thread):
        return puts
    # A state that is stored for a run forks it: once, however many requests the state needs.
    fork = str(uuid.uuid4())
    return [{**put, "fork": fork, "completes": put is puts[-1]} for put in puts]


def _may_be_run(thread: str) -> bool:
    try:
        uuid.UUID(thread)
    except ValueError:
        return False
    return True


def _prune(thread_ids: Sequence[str], strategy: str) -> list[dict[str, Any]]:
    if strategy not in ("keep_latest", "delete"):
        raise ValueError(f"the strategy is {strategy!r}: use 'keep_latest' or 'delete'")
    op = "prune" if strategy == "keep_latest" else "delete"
    return [{"op": op, "thread": thread} for thread in thread_ids]


def _without_id(config: RunnableConfig) -> RunnableConfig:
    place = CheckpointPlace.of(config)
    return CheckpointPlace(place.thread, place.namespace).config()


async def _collected(tuples: AsyncIterator[CheckpointTuple]) -> list[CheckpointTuple]:
    return [each async for each in tuples]
