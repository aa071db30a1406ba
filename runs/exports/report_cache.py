"""Caches compressed reports of shared runs in the memory of a process, so that popular links are cheap."""

from __future__ import annotations

import threading
import time
import zlib
from collections import OrderedDict
from collections.abc import Hashable, Iterator
from dataclasses import dataclass

from agentops.accounts.redaction_rules import rule_cache
from runs.exports.run_report import report_portions
from runs.models import AgentRun

MIB = 1024 * 1024
#: Maximum bytes of all cached reports, and of one; a longer report is generated for each request.
MAX_BYTES, MAX_REPORT = 32 * MIB, 4 * MIB
#: Seconds for which a report is cached. The report contains its time of creation.
FRESH_S = 300.0
#: zlib's window size, with a gzip header.
GZIP = zlib.MAX_WBITS | 16
#: Fast: most of a report is text.
LEVEL = 6


@dataclass(frozen=True, slots=True)
class _Kept:
    content: bytes
    until: float


class ReportCache:
    """The cached reports of one process, by their cache key. Drops the least recently used report first."""

    def __init__(self) -> None:
        self._reports: OrderedDict[Hashable, _Kept] = OrderedDict()
        self._size = 0
        self._lock = threading.Lock()

    def get(self, key: Hashable) -> bytes | None:
        """Return the cached report, compressed by gzip; None if it is not cached."""
        with self._lock:
            kept = self._reports.get(key)
            if kept is None or kept.until < time.monotonic():
                return None
            self._reports.move_to_end(key)
            return kept.content

    def keep(self, key: Hashable, portions: Iterator[str]) -> Iterator[str]:
        """Yield the portions of a report, and cache it once all of it was read."""
        squeeze, pieces, size = zlib.compressobj(LEVEL, zlib.DEFLATED, GZIP), list[bytes](), 0
        for portion in portions:
            if size <= MAX_REPORT:
                pieces.append(squeeze.compress(portion.encode()))
                size += len(pieces[-1])
            yield portion
        content = b"".join([*pieces, squeeze.flush()])
        if len(content) <= MAX_REPORT:
            self._put(key, content)

    def _put(self, key: Hashable, content: bytes) -> None:
        with self._lock:
            if (before := self._reports.pop(key, None)) is not None:
                self._size -= len(before.content)
            self._reports[key] = _Kept(content, time.monotonic() + FRESH_S)
            self._size += len(content)
            while self._size > MAX_BYTES:
                _, oldest = self._reports.popitem(last=False)
                self._size -= len(oldest.content)


CACHE = ReportCache()


def shared_report(run: AgentRun) -> bytes | Iterator[str]:
    """Return the report of a run without its notes: compressed by gzip if cached, else in portions."""
    # Each change of a report writes an event, except changes by people and changes of the masking rules. So the key
    # contains the edited fields and both versions of the rules: in the database, and in this process.
    rules = run.project.redaction_version, rule_cache.CACHE.current().versions.get(run.project_id, 0)
    key = run.pk, run.log.last_seq, rules, run.status, run.title, tuple(map(str, run.labels)), run.cost_usd, run.summary
    kept = CACHE.get(key)
    return CACHE.keep(key, report_portions(run, with_notes=False)) if kept is None else kept
