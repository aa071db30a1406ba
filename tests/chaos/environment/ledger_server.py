"""The external world of a schedule: a process that records every request and effect, even if the sender dies.

Uses only the standard library, so that it cannot share a bug with the product. An effect with a key happens once: a
repeated key returns the stored answer, as at a real provider. An effect without a key happens on every request.

`ledger_server.py FILE` prints its port and serves until its standard input is closed.
"""

from __future__ import annotations

import json
import sqlite3
import sys
import threading
import time
from collections.abc import Callable
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

TABLES = """
CREATE TABLE arrivals (number INTEGER PRIMARY KEY, run TEXT, call TEXT, key TEXT, effect TEXT, attempt INTEGER,
    epoch INTEGER, output TEXT, fate TEXT, at REAL);
CREATE INDEX of_call ON arrivals (call);
CREATE INDEX of_key ON arrivals (key);
CREATE TABLE requests (number INTEGER PRIMARY KEY, agent TEXT, step INTEGER, ordinal INTEGER, at REAL);
CREATE INDEX of_step ON requests (agent, step);
CREATE TABLE voided (call TEXT PRIMARY KEY, epoch INTEGER);
"""
#: Results of a request for an effect.
HAPPENED, REPLAYED, REFUSED, LOOKED = "happened", "replayed", "refused", "looked"


class Ledger:
    """The record of requests and effects. A lock serializes writes, so row numbers give the order of events."""

    def __init__(self, path: str) -> None:
        self._lock = threading.Lock()
        self._rows = sqlite3.connect(path, check_same_thread=False, isolation_level=None)
        self._rows.row_factory = sqlite3.Row
        # Safe, because the ledger itself is never killed.
        self._rows.execute("PRAGMA synchronous = OFF")
        self._rows.executescript(TABLES)

    def effect(self, asked: dict[str, Any]) -> dict[str, Any]:
        """Record a tool's request for its effect and return the result."""
        with self._lock:
            fate, output = self._judge(asked)
            columns = [asked[name] for name in ("run", "call", "key", "effect", "attempt", "epoch")]
            self._rows.execute(
                "INSERT INTO arrivals (run, call, key, effect, attempt, epoch, output, fate, at)"
                " VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?)",
                [*columns, output, fate, time.time()],
            )
            return {"fate": fate, "output": output}

    def _judge(self, asked: dict[str, Any]) -> tuple[str, str]:
        if asked["effect"] == "read":
            return LOOKED, asked["output"]
        void = self._one("SELECT epoch FROM voided WHERE call = ?", asked["call"])
        if void is not None and asked["epoch"] <= void["epoch"]:
            return REFUSED, ""
        if asked["effect"] == "idempotent":
            done = self._one("SELECT output FROM arrivals WHERE key = ? AND fate = 'happened'", asked["key"])
            if done is not None:
                return REPLAYED, done["output"]
        return HAPPENED, asked["output"]

    def request(self, asked: dict[str, Any]) -> dict[str, Any]:
        """Record a request to the model and return how many times this step has been requested."""
        with self._lock:
            [ordinal] = self._rows.execute(
                "SELECT COUNT(*) + 1 FROM requests WHERE agent = ? AND step = ?", [asked["agent"], asked["step"]]
            ).fetchone()
            self._rows.execute(
                "INSERT INTO requests (agent, step, ordinal, at) VALUES (?, ?, ?, ?)",
                [asked["agent"], asked["step"], ordinal, time.time()],
            )
            return {"ordinal": ordinal}

    def settle(self, asked: dict[str, Any]) -> dict[str, Any]:
        """Return whether a call has happened. If not, refuse it from now on to epochs up to the given one."""
        with self._lock:
            done = self._one("SELECT output FROM arrivals WHERE call = ? AND fate = 'happened'", asked["call"])
            if done is not None:
                return {"done": True, "output": done["output"]}
            self._rows.execute("INSERT OR REPLACE INTO voided VALUES (?, ?)", [asked["call"], asked["epoch"]])
            return {"done": False}

    def everything(self, _: dict[str, Any]) -> dict[str, Any]:
        with self._lock:
            return {
                name: [dict(row) for row in self._rows.execute(f"SELECT * FROM {name} ORDER BY number")]
                for name in ("arrivals", "requests")
            }

    def count(self, _: dict[str, Any]) -> dict[str, Any]:
        with self._lock:
            [requests] = self._rows.execute("SELECT COUNT(*) FROM requests").fetchone()
            [arrivals] = self._rows.execute("SELECT COUNT(*) FROM arrivals").fetchone()
            return {"requests": requests, "arrivals": arrivals}

    def _one(self, sql: str, *values: Any) -> sqlite3.Row | None:
        row: sqlite3.Row | None = self._rows.execute(sql, values).fetchone()
        return row

    def close(self) -> None:
        self._rows.close()


def handler_of(ledger: Ledger) -> type[BaseHTTPRequestHandler]:
    handlers: dict[str, Callable[[dict[str, Any]], dict[str, Any]]] = {
        "/effect": ledger.effect,
        "/request": ledger.request,
        "/settle": ledger.settle,
        "/everything": ledger.everything,
        "/count": ledger.count,
    }

    class Handler(BaseHTTPRequestHandler):
        def do_POST(self) -> None:
            length = int(self.headers["Content-Length"])
            body = self.rfile.read(length)
            if len(body) < length:
                return  # the client was killed while sending
            answer = json.dumps(handlers[self.path](json.loads(body))).encode()
            try:
                self.send_response(200)
                self.send_header("Content-Length", str(len(answer)))
                self.end_headers()
                self.wfile.write(answer)
            except OSError:
                """Who asked is dead. It has happened all the same."""

        def log_message(self, *_: Any) -> None:
            """Log nothing."""

    return Handler


def main() -> None:
    ledger = Ledger(sys.argv[1])
    server = ThreadingHTTPServer(("127.0.0.1", 0), handler_of(ledger))
    server.daemon_threads = True
    threading.Thread(target=server.serve_forever, daemon=True).start()
    print(server.server_address[1], flush=True)
    sys.stdin.read()
    server.shutdown()
    server.server_close()
    ledger.close()


if __name__ == "__main__":
    main()
