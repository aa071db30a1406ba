"""`agentops watch` on a site with one process: the time from a line in a session file to its row in the browser."""

from __future__ import annotations

import json
import re
import sys
import time
from collections.abc import Iterator
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from bench.page_reader import PageReader, chromium, reading
from bench.processes import running
from bench.report import Row, heading, note, show
from bench.stacks import MANAGE, PROJECT, Stack, embedded, embedded_environment
from bench.workspace import Workspace

#: Limit in seconds from line to row, for 95 % of the lines.
GOAL_S = 1.0
PAUSE_S = 0.4
#: Seconds until the last line must be visible.
PATIENCE_S = 15
LINES, FEW_LINES = 150, 20
#: Lines after which the rows are read, because a live page keeps only the last 300 rows.
LOOK_EVERY = 50
#: Number of lines before the measured ones, so that the file has a realistic length.
EARLIER = 400
MARK = re.compile(r"mark (\d+) ")


def run(workspace: Workspace, *, steps: int, quick: bool, with_peers: bool) -> None:
    heading("watch: from a line in a session file to its row in the browser")
    if chromium() is None:
        show(Row("watch", "-", "Chromium is not installed"))
        return
    sessions = workspace.folder / "sessions"
    sessions.mkdir()
    with embedded(workspace) as stack, reading(stack) as reader:
        environment = embedded_environment(workspace)
        command = [sys.executable, str(MANAGE), "watch", str(sessions), "--project", PROJECT]
        with running(command, environment, workspace.folder / "watch.log"):
            took = _watch(sessions / "session.jsonl", reader, stack, lines=FEW_LINES if quick else LINES)
    took.sort()
    late = took[int(len(took) * 0.95)]
    figures = f"p50 {took[len(took) // 2] * 1000:.0f} ms, p95 {late * 1000:.0f} ms"
    show(Row("line to row, p95", figures, f"the goal: {GOAL_S:g} s", late / GOAL_S, at_most=1))
    note(
        f"{len(took)} lines, one every {PAUSE_S:g} s, after {EARLIER} others; SQLite; slowest {took[-1] * 1000:.0f} ms"
    )


def _watch(path: Path, reader: PageReader, stack: Stack, *, lines: int) -> list[float]:
    """Return the seconds from writing each line to the row with its text."""
    written: dict[int, float] = {}
    shown: dict[int, float] = {}
    session = _lines(EARLIER + lines)
    with path.open("ab", buffering=0) as file:
        file.write(b"".join(next(session) for _ in range(EARLIER)))
        _open_run(reader, stack)
        for number in range(EARLIER, EARLIER + lines):
            line = next(session)
            written[number] = time.time()
            file.write(line)
            reader.page.wait_for_timeout(PAUSE_S * 1000)
            if number % LOOK_EVERY == 0:
                shown = _shown(reader) | shown
    reader.page.get_by_text(f"mark {EARLIER + lines - 1} ").first.wait_for(timeout=PATIENCE_S * 1000)
    shown = _shown(reader) | shown
    if missing := written.keys() - shown.keys():
        raise RuntimeError(f"{len(missing)} lines are not in the page, such as {min(missing)}")
    return [shown[number] - at for number, at in written.items()]


def _open_run(reader: PageReader, stack: Stack) -> None:
    """Open the page of the session once it appears in the list."""
    link = reader.page.locator("table a[href*='/runs/']").first
    until = time.monotonic() + PATIENCE_S
    while not link.count():
        if time.monotonic() > until:
            raise RuntimeError("the session is not in the list")
        reader.page.goto(f"{stack.url}/p/{PROJECT}/runs")
    reader.open_run(str(link.get_attribute("href")).rpartition("/")[2])


def _shown(reader: PageReader) -> dict[int, float]:
    """Return for each line number when the first row with its text appeared."""
    texts: dict[str, str] = reader.page.evaluate(
        """() => Object.fromEntries([...document.querySelectorAll("#timeline > [data-seq]")].map(
            (row) => [row.dataset.seq, row.textContent]))"""
    )
    rows, shown = reader.rows(), dict[int, float]()
    for seq, text in texts.items():
        for number in map(int, MARK.findall(text)):
            shown[number] = min(shown.get(number, float("inf")), rows[int(seq)])
    return shown


def _lines(count: int) -> Iterator[bytes]:
    """Yield the lines of a session of Claude Code: prompts and answers in turn, each with its mark."""
    parent = None
    for number in range(count):
        line = {
            "uuid": f"line-{number}",
            "parentUuid": parent,
            **_message(number),
            "sessionId": "bench",
            "cwd": "/bench",
        }
        parent = line["uuid"]
        yield json.dumps({**line, "timestamp": datetime.now(UTC).isoformat()}).encode() + b"\n"


def _message(number: int) -> dict[str, Any]:
    text = f"mark {number} of the session"
    if number % 2 == 0:
        return {"type": "user", "message": {"role": "user", "content": text}}
    usage = {"input_tokens": 9, "output_tokens": 5, "cache_read_input_tokens": 0, "cache_creation_input_tokens": 0}
    answer = {"id": f"msg-{number}", "role": "assistant", "model": "claude-sonnet-4-5", "usage": usage}
    return {"type": "assistant", "message": {**answer, "content": [{"type": "text", "text": text}]}}
