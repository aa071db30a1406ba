"""Imports of session files: MB per second, and peak memory at 1, 4 and 16 times the size of a file.

A file grows by repeating the lines of a recorded session with new IDs, so that no line is a duplicate.
"""

from __future__ import annotations

import os
import re
import subprocess
import sys
import time
from dataclasses import dataclass
from functools import partial
from hashlib import sha256
from pathlib import Path

from bench.report import Row, heading, mid, note, show
from bench.stacks import MANAGE
from bench.workspace import Workspace

SIZES = (1, 4, 16)
#: Minimum bytes of the smallest file.
SMALLEST, QUICK_SMALLEST = 1_000_000, 100_000
#: The peak memory at 16 times the size, relative to the peak at one.
MEMORY_GOAL = 1.25
ROUNDS = 2
SHARED = Path(__file__).resolve().parent.parent.parent / "shared" / "data"
#: A recorded session of each format.
SOURCES = {"claude-code": "claude-code/7e-d4051c8a85-0.jsonl", "codex": "codex/codex-rollout.sample.jsonl"}
_UUID = re.compile(rb"[0-9a-f]{8}-[0-9a-f]{4}-[0-9a-f]{4}-[0-9a-f]{4}-[0-9a-f]{12}")
_ID = re.compile(_UUID.pattern + rb"|\b(?:toolu|msg|req|call|rs|fc)_(?=[A-Za-z]*[0-9])[A-Za-z0-9]+")


@dataclass(frozen=True)
class Import:
    size: int
    seconds: float
    cpu_s: float
    peak_mib: float


def run(workspace: Workspace, *, steps: int, quick: bool, with_peers: bool) -> None:
    heading("import: files of 1, 4 and 16 times the size, one process each")
    from agentops.accounts.access import SYSTEM
    from agentops.accounts.memberships import create_project

    create_project("bench", "Bench", actor=SYSTEM)
    smallest = QUICK_SMALLEST if quick or steps < 1000 else SMALLEST
    for name, path in SOURCES.items():
        if (SHARED / path).is_file():
            _measure(workspace, name, smallest, 1 if quick else ROUNDS)
        else:
            show(Row(f"{name}: peak memory at {SIZES[-1]} x", "-", f"no recording at {SHARED / path}"))


def _measure(workspace: Workspace, name: str, smallest: int, rounds: int) -> None:
    sizes = {times: _sizes_in_turn(workspace, name, smallest, times, rounds) for times in SIZES}
    starts = [_imported(workspace.folder / "none") for _ in range(rounds)]
    for times, imports in sizes.items():
        note(
            f"{name}, {times} x, {imports[0].size / 1e6:.1f} MB: peak {mid([one.peak_mib for one in imports]):.0f} MiB"
        )
    # Starting a process takes longer than importing a small file.
    megabytes = sizes[SIZES[-1]][0].size / 1e6
    took_s, cpu_s = (
        mid([getattr(one, which) for one in sizes[SIZES[-1]]]) - mid([getattr(one, which) for one in starts])
        for which in ("seconds", "cpu_s")
    )
    note(f"{name}: {megabytes / took_s:.2f} MB/s, {megabytes / cpu_s:.2f} MB per second of CPU time")
    least, most = (mid([one.peak_mib for one in sizes[times]]) for times in (SIZES[0], SIZES[-1]))
    figures = (f"{most:.0f} MiB", f"1 x: {least:.0f} MiB")
    show(Row(f"{name}: peak memory at {SIZES[-1]} x", *figures, most / least, at_most=MEMORY_GOAL))


def _sizes_in_turn(workspace: Workspace, name: str, smallest: int, times: int, rounds: int) -> list[Import]:
    imports = []
    for turn in range(rounds):
        file = workspace.folder / f"{name}-{times}-{turn}.jsonl"
        write_grown(SHARED / SOURCES[name], file, smallest, times, salt=f"{times}-{turn}")
        imports.append(_imported(file))
        file.unlink()
    return imports


def _imported(file: Path) -> Import:
    """Import a file with the command, in a separate process. A missing file measures the start alone."""
    command = [sys.executable, str(MANAGE), "import_run", str(file), "--project", "bench"]
    began = time.perf_counter()
    with subprocess.Popen(command, env=os.environ, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE) as process:
        assert process.stderr is not None
        complaint = process.stderr.read()
        _, status, usage = os.wait4(process.pid, 0)
        process.returncode = os.waitstatus_to_exitcode(status)
    if process.returncode and file.exists():
        raise RuntimeError(f"{file.name} was not imported: {complaint.decode(errors='replace')[-300:]}")
    took_s, size = time.perf_counter() - began, file.stat().st_size if file.exists() else 0
    return Import(size, took_s, usage.ru_utime + usage.ru_stime, usage.ru_maxrss / 1024)


def write_grown(recorded: Path, file: Path, smallest: int, times: int, *, salt: str) -> None:
    """Write one session of at least `times` × `smallest` bytes, by repeating a recorded session with new IDs."""
    lines = [line + b"\n" for line in recorded.read_bytes().splitlines()]
    session = _UUID.search(b"".join(line for line in lines if b"session" in line))
    same = {session[0]: _other(session[0], salt)} if session else {}
    with file.open("wb") as target:
        for turn in range(-(-smallest // sum(map(len, lines))) * times):
            known = dict(same)
            for line in lines[bool(turn and recorded.parent.name == "codex") :]:  # A rollout has only one beginning.
                target.write(_ID.sub(partial(_renamed, known, f"{salt}-{turn}"), line))


def _renamed(known: dict[bytes, bytes], salt: str, match: re.Match[bytes]) -> bytes:
    return known.setdefault(match[0], _other(match[0], salt))


def _other(name: bytes, salt: str) -> bytes:
    """Return another ID in the same form."""
    digest = sha256(salt.encode() + name).hexdigest().encode()
    if _UUID.fullmatch(name):
        return b"-".join((digest[:8], digest[8:12], digest[12:16], digest[16:20], digest[20:32]))
    return name.partition(b"_")[0] + b"_" + digest[:24]
