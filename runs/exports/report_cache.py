"""Caches compressed reports of shared runs in the memory of a process, so that popular links are cheap."""

from __future__ import annotations

import threading
import time
import zlib
from collections import OrderedDict
from collections.abc import Hashable, Iterator
from dataclasses import dataclass

from agentops.accounts import redaction_cache
from runs.exports.run_report import report_portions
from runs.models import AgentRun

MIB = 1024 * 1024
#: Maximum bytes of all cached reports, compressed.
MAX_BYTES = 32 * MIB
#: Maximum bytes of a cached report, compressed. A larger report is generated for each request.
MAX_REPORT = 4 * MIB
#: Seconds for which a report is cached: the time of creation that it states must be about right.
FRESH_S = 300.0
#: zlib writes the format of gzip.
GZIP = zlib.MAX_WBITS | 16
COMPRESSION_LEVEL = 6


@dataclass(frozen=True, slots=True)
class _CachedReport:
    content: bytes
    until: float


class ReportCache:
    """The cached reports of one process, by their cache key. Drops the least recently used report first."""

    def __init__(self) -> None:
        self._reports: OrderedDict[Hashable, _CachedReport] = OrderedDict()
        self._size = 0
        self._lock = threading.Lock()

    def get(self, key: Hashable) -> bytes | None:
        """Return the cached report, compressed by gzip; None if it is not cached."""
        with self._lock:
            cached = self._reports.get(key)
            if cached is None or cached.until < time.monotonic():
                return None
            self._reports.move_to_end(key)
            return cached.content

    def keep(self, key: Hashable, portions: Iterator[str]) -> Iterator[str]:
        """Yield the portions of a report, and cache it when all portions were read."""
        compressor, pieces, size = zlib.compressobj(COMPRESSION_LEVEL, zlib.DEFLATED, GZIP), list[bytes](), 0
        for portion in portions:
            if size <= MAX_REPORT:
                pieces.append(compressor.compress(portion.encode()))
                size += len(pieces[-1])
            yield portion
        content = b"".join([*pieces, compressor.flush()])
        if len(content) <= MAX_REPORT:
            self._put(key, content)

    def _put(self, key: Hashable, content: bytes) -> None:
        with self._lock:
            if (before := self._reports.pop(key, None)) is not None:
                self._size -= len(before.content)
            self._reports[key] = _CachedReport(content, time.monotonic() + FRESH_S)
            self._size += len(content)
            while self._size > MAX_BYTES:
                _, oldest = self._reports.popitem(last=False)
                self._size -= len(oldest.content)


CACHE = ReportCache()


def shared_report(run: AgentRun) -> bytes | Iterator[str]:
    """Return the report of a run without its notes: compressed by gzip if it is cached, otherwise in portions."""
    # Most changes of a run write an event, and so change `last_seq`. Some do not: edits by people, and changes of the
    # redaction rules, both in the database and in this process. Therefore the key contains these values, too.
    rules = run.project.redaction_version, redaction_cache.CACHE.current().versions.get(run.project_id, 0)
    key = run.pk, run.log.last_seq, rules, run.status, run.title, tuple(map(str, run.labels)), run.cost_usd, run.summary
    cached = CACHE.get(key)
    return CACHE.keep(key, report_portions(run, with_notes=False)) if cached is None else cached
