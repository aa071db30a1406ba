"""Test that a worker checks messages from Redis: a forged message has no effect."""

from __future__ import annotations

import base64
import json
import pickle
import time
import zlib
from collections.abc import Iterator
from functools import partial
from pathlib import Path
from typing import Any
from uuid import uuid4

import pytest
import redis
from celery import Celery

from agentops.base.backing_services import PRIORITIES, UPKEEP
from runs.statuses import RunStatus
from tests.support.child_processes import ChildProcess
from tests.support.databases import OwnRedis
from tests.support.stage import Stage
from tests.support.timing import eventually

pytestmark = pytest.mark.redis
QUEUE, CONTROL = "default", "/0.celery.pidbox"


class Bomb:
    """Creates a file when it is unpickled."""

    def __init__(self, path: Path) -> None:
        self.path = path

    def __reduce__(self) -> Any:
        return Path.touch, (self.path,)


def encoded(value: Any) -> str:
    return base64.b64encode(json.dumps(value).encode()).decode()


def genuine(server: OwnRedis, task: str = "runs.advance", **options: Any) -> dict[str, Any]:
    """Return a hint in Celery's message format."""
    with Celery("hints", broker=server.url) as app, redis.Redis.from_url(server.url) as client:
        app.send_task(task, **{"args": [str(uuid4())], "queue": "sample", "retry": False, **options})
        raw = client.rpop("sample")
    assert isinstance(raw, bytes)
    message: dict[str, Any] = json.loads(raw)
    return message


def forged_hints(server: OwnRedis, bomb: bytes) -> Iterator[bytes | str]:
    """Yield values for the queue that no process of the site writes."""
    hint = genuine(server)
    properties, headers = hint["properties"], hint["headers"]
    yield from (b"", b"\x80\xff", bomb, b"null", b"1", b"[]", b"{}", b'"text"', b"[" * 100_000, b"{" * 1000)
    yield from (json.dumps({**hint, name: value}) for name in hint for value in (None, 7, "x", [], {}, {"x": 1}))
    for name in properties:
        yield from (json.dumps({**hint, "properties": {**properties, name: value}}) for value in (None, 7, "x", []))
    for name in headers:
        values = (None, 7, "x" * 10, [["x"]], {"x": {"x": 1}}, "9" * 5000)
        yield from (json.dumps({**hint, "headers": {**headers, name: value}}) for value in values)
    packed = base64.b64encode(bomb).decode()
    for kind in ("application/x-python-serialize", "application/x-yaml", "application/x-msgpack", "pickle"):
        yield json.dumps({**hint, "body": packed, "content-type": kind, "content-encoding": "binary"})
    huge = base64.b64encode(zlib.compress(b"[" + b" " * 30_000_000 + b"]")).decode()
    yield json.dumps({**hint, "body": huge, "headers": {**headers, "compression": "application/x-gzip"}})
    call = {"task": "runs.sweep", "args": [], "kwargs": {}, "options": {"queue": "elsewhere"}}
    embedded = {"callbacks": [call], "errbacks": [call], "chain": [call], "chord": call}
    for args in ([[], {}, {}], ["x"], [], [["x" * 36], {}, {}], [[str(uuid4())], {"passed": -(10**9)}, embedded], 7):
        yield json.dumps({**hint, "body": encoded(args)})
    for task in (
        "celery.chord_unlock",
        "celery.group",
        "celery.map",
        "celery.backend_cleanup",
        "os.system",
        "x" * 9999,
    ):
        yield json.dumps(genuine(server, task))


def control(method: Any, arguments: Any = None, **more: Any) -> dict[str, Any]:
    """Return a message of Celery's remote control, addressed to all workers."""
    body = {"method": method, "arguments": arguments or {}, "destination": None, "pattern": None, "matcher": None}
    return {
        "body": encoded({**body, **more}),
        "content-encoding": "utf-8",
        "content-type": "application/json",
        "headers": {"clock": 1, "expires": None},
        "properties": {
            "delivery_mode": 2,
            "delivery_info": {"exchange": "celery.pidbox", "routing_key": ""},
            "priority": 0,
            "body_encoding": "base64",
            "delivery_tag": str(uuid4()),
        },
    }


COMMANDS: dict[str, dict[str, Any]] = {
    "shutdown": {},
    "pool_restart": {"modules": ["tests"], "reload": True},
    "pool_grow": {"n": 500},
    "pool_shrink": {"n": 500},
    "autoscale": {"max": 1, "min": 0},
    "rate_limit": {"task_name": "runs.advance", "rate_limit": "1/h"},
    "time_limit": {"task_name": "runs.advance", "hard": 1, "soft": 1},
    "revoke": {"task_id": ["x"], "terminate": True, "signal": "KILL"},
    "revoke_by_stamped_headers": {"headers": {"x": ["y"]}, "terminate": True},
    "terminate": {"signal": "KILL", "task_id": ["x"]},
    "add_consumer": {"queue": "elsewhere"},
    "cancel_consumer": {"queue": QUEUE},
    "enable_events": {},
    "election": {"id": "x", "topic": "task", "action": {"task": "runs.sweep"}},
    "hello": {"from_node": "x", "revoked": {"x": 1}},
    "objgraph": {},
    "memdump": {},
}


def test_forged_messages_neither_end_a_worker_nor_run_code(stage: Stage, own_redis: OwnRedis, tmp_path: Path) -> None:
    bomb = pickle.dumps(Bomb(tmp_path / "exploded"))
    worker = stage.worker(AGENTOPS_SWEEP_S="600", slots=1)
    with redis.Redis.from_url(own_redis.url) as client:
        eventually(client.pubsub_numpat, why="the worker hears commands")
        forged = list(forged_hints(own_redis, bomb))
        for message in forged:
            client.lpush(QUEUE, message)
            assert worker.alive, (message[:1000], worker.said())
        eventually(lambda: client.llen(QUEUE) == 0 or not worker.alive, why="the worker has read all")
        # A pattern with catastrophic backtracking, and values that are not commands.
        evil = control("ping", pattern="(" * 5 + r"\w|.)*" + ")*" * 4 + "!", matcher="pcre")
        broken = [b"", bomb, b"[]", b"7", b"null", json.dumps(control(None)), json.dumps(control(["x"]))]
        for command in [
            *broken,
            *(json.dumps(control(name, args)) for name, args in COMMANDS.items()),
            json.dumps(evil),
        ]:
            client.publish(CONTROL, command)
    hears_hints(stage, own_redis, worker)

    assert not (tmp_path / "exploded").exists()
    assert "elsewhere" not in answers_of(own_redis, "active_queues")
    assert "x" not in answers_of(own_redis, "revoked")
    for command in ("ping", "stats", "active", "reserved", "scheduled", "registered", "clock"):
        eventually(partial(answers_of, own_redis, command), why=f"{command} is answered")
    operator = stage.spawn(["-A", "agentops", "inspect", "ping"])
    assert operator.wait(within_s=60, why="celery -A agentops inspect ping") == 0, operator.said()
    assert "pong" in operator.said()
    # A setting allows remote control.
    controlled = stage.worker(AGENTOPS_CELERY_CONTROL="true")
    with redis.Redis.from_url(own_redis.url) as client:
        shutdown = json.dumps(control("shutdown"))
        eventually(lambda: client.publish(CONTROL, shutdown) == 2, why="both workers hear commands")
    assert controlled.wait(within_s=20, why="ended by remote control") == 0
    assert worker.alive


def hears_hints(stage: Stage, own_redis: OwnRedis, worker: ChildProcess) -> None:
    run = stage.run()
    own_redis.hint(run.pk)
    stage.reaches(run, RunStatus.COMPLETED)
    assert worker.alive, worker.said()


def answers_of(server: OwnRedis, command: str) -> str:
    """Return the workers' answers to a command of `celery inspect`."""
    with Celery("inspects", broker=server.url) as app:
        answers = app.control.broadcast(command, reply=True, timeout=5, limit=1)
    return str(answers) if answers else ""


def test_workers_survive_invalid_values_in_redis_keys(stage: Stage, own_redis: OwnRedis, tmp_path: Path) -> None:
    """While the queues are unreadable, no run starts; afterwards, all do."""
    bomb = pickle.dumps(Bomb(tmp_path / "exploded"))
    workers = [stage.worker()]
    hears_hints(stage, own_redis, workers[0])
    with redis.Redis.from_url(own_redis.url) as client:
        queues = [key_of(queue, priority) for queue in (QUEUE, UPKEEP) for priority in PRIORITIES]
        for key in {*client.keys(), *queues, "_kombu.binding.default", "unacked", "unacked_index", "unacked_mutex"}:
            client.set(key, bomb)
        workers.append(stage.worker())
        runs = [stage.run() for _ in range(3)]
        for worker in workers:
            eventually(lambda worker=worker: "WRONGTYPE" in worker.said(500), why="it has tried to read the queues")
        for run in runs:
            run.refresh_from_db()
            assert (run.status, run.lease_epoch) == (RunStatus.QUEUED, 0)
        assert all(worker.alive for worker in workers), [worker.said() for worker in workers]
        client.flushall()
    for run in runs:
        stage.reaches(run, RunStatus.COMPLETED)
    eventually(lambda: own_redis_hint(own_redis) == 0, why="workers read the queue again")
    assert all(worker.alive for worker in workers), [worker.said() for worker in workers]
    assert not (tmp_path / "exploded").exists()


def key_of(queue: str, priority: int) -> str:
    """Return kombu's key of the Redis list for a queue and a priority."""
    return f"{queue}\x06\x16{priority}" if priority else queue


def own_redis_hint(server: OwnRedis) -> int:
    """Send a hint for a run that does not exist, and return the length of the queue shortly afterwards."""
    server.hint(uuid4())
    time.sleep(0.5)
    with redis.Redis.from_url(server.url) as client:
        return int(client.llen(key_of(QUEUE, 6)))
