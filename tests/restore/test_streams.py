"""Readers of a restored database: their cursors are from before the restore, so they get a reset."""

from __future__ import annotations

import json
import re

import pytest
from django.test import Client

from runs.upkeep import restore
from tests.support.stream_clients import Follower, Listeners
from tests.support.timelines import StreamedRun, finish, grow, last_seq
from tests.support.timing import eventually
from tests.support.web_server import WebThread


@pytest.fixture
def scene(web: WebThread, listeners: Listeners) -> StreamedRun:
    return StreamedRun(web, listeners)


def restored() -> int:
    incarnation = restore.begin(by="test")
    for _ in restore.fence_off(incarnation):
        pass
    return incarnation.number


def resets(reader: Follower) -> list[int]:
    return [json.loads(message.data or "")["last_seq"] for message in reader.events("stream-reset")]


def ids(reader: Follower) -> list[str]:
    return [message.id or "" for message in reader.events("message")]


@pytest.mark.slow
def test_open_stream_starts_again_with_new_ids(scene: StreamedRun) -> None:
    """The new log has the same length as the old one, but other events."""
    last = grow(scene.run, 5)
    reader = scene.open()
    eventually(lambda: reader.messages and len(ids(reader)) == last, within_s=5, why="it is replayed")
    number = restored()
    newest = last_seq(scene.run)

    eventually(lambda: ids(reader)[-1:] == [f"{newest}.{number}"], within_s=5, why="everything comes again")
    assert resets(reader) == [newest]
    assert ids(reader) == [
        *(str(seq) for seq in range(1, last + 1)),
        *(f"{seq}.{number}" for seq in range(1, newest + 1)),
    ]
    new = grow(scene.run)
    eventually(lambda: ids(reader)[-1:] == [f"{new}.{number}"], within_s=5, why="and goes on")
    assert resets(reader) == [newest]


@pytest.mark.parametrize("how", ["header", "query"])
def test_cursor_from_before_the_restore_is_reset(scene: StreamedRun, how: str) -> None:
    """The reset names the last seq; then all events follow. A plain seq is a cursor from before any restore."""
    old = grow(scene.run, 5)
    number = restored()
    newest = last_seq(scene.run)

    for cursor in (str(old - 1), f"{old - 1}.{number - 1}", f"{old - 1}.1"):
        query, headers = ("", {"Last-Event-ID": cursor}) if how == "header" else (f"?afterSeq={cursor}", {})
        reader = scene.open(query, headers)
        eventually(lambda r=reader: len(ids(r)) == newest, within_s=5, why="everything comes")
        assert resets(reader) == [newest], cursor
        assert ids(reader)[0] == f"1.{number}"


def test_cursor_from_after_the_restore_continues(scene: StreamedRun) -> None:
    old = grow(scene.run, 5)
    number = restored()
    newest = last_seq(scene.run)

    reader = scene.open(headers={"Last-Event-ID": f"{old - 2}.{number}"})
    from_the_start = scene.open("?afterSeq=0")
    eventually(lambda: ids(reader)[-1:] == ids(from_the_start)[-1:] == [f"{newest}.{number}"], within_s=5, why="both")

    assert resets(reader) == resets(from_the_start) == []
    assert ids(reader)[0] == f"{old - 1}.{number}"
    assert len(ids(from_the_start)) == newest


def test_ended_run_gives_204_only_for_a_cursor_from_after_the_restore(scene: StreamedRun) -> None:
    last = finish(scene.run)
    number = restored()

    assert scene.listeners.ask(scene.url, scene.cookie | {"Last-Event-ID": f"{last}.{number}"}).status == 204
    told = scene.listeners.read_to_end(scene.url, scene.cookie | {"Last-Event-ID": str(last)})
    named = [message for message in told if message.data is not None]
    assert [named[0].event, named[-1].event] == ["stream-reset", "end"]
    assert named[-1].id == f"{last}.{number}"


@pytest.mark.slow
def test_page_from_before_the_restore_is_reset(scene: StreamedRun) -> None:
    client = Client()
    client.force_login(scene.reader)

    def cursor() -> str:
        [found] = re.findall(r'data-last="([^"]*)"', client.get(f"/runs/{scene.run.pk}").content.decode())
        return str(found)

    before = cursor()
    assert before == str(last_seq(scene.run))
    open_page = scene.listeners.open(f"{scene.page_url}?afterSeq={before}", scene.cookie, pause_s=60)
    eventually(lambda: open_page.messages, why="the stream begins")
    number = restored()
    after = cursor()

    assert after == f"{last_seq(scene.run)}.{number}"
    eventually(lambda: resets(open_page), within_s=5, why="the open page gets a reset")
    again = scene.listeners.open(f"{scene.page_url}?afterSeq={before}", scene.cookie, pause_s=60)
    fresh = scene.listeners.open(f"{scene.page_url}?afterSeq={after}", scene.cookie, pause_s=60)
    eventually(lambda: resets(again), within_s=5, why="a page that comes back gets a reset")
    new = grow(scene.run)
    eventually(lambda: fresh.events("rows"), within_s=5, why="a fresh page gets what comes")
    assert fresh.events("rows")[-1].id == f"{new}.{number}"
    assert resets(fresh) == []


def test_readers_from_before_and_after_the_restore_share_a_log(scene: StreamedRun) -> None:
    """The first reader after the restore makes the server reset the earlier readers, before its next periodic check."""
    old = grow(scene.run, 3)
    there = scene.open()
    eventually(lambda: len(ids(there)) == old, within_s=5, why="it is replayed")
    number = restored()
    newest = last_seq(scene.run)
    comes = scene.open(headers={"Last-Event-ID": f"{newest}.{number}"})
    new = grow(scene.run)

    eventually(lambda: ids(there)[-1:] == ids(comes)[-1:] == [f"{new}.{number}"], within_s=5, why="both have it")
    assert len(resets(there)) == 1
    assert (resets(comes), ids(comes)) == ([], [f"{new}.{number}"])
