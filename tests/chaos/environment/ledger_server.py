"""Stands for the world outside: a process that remembers every request and every effect, whatever becomes of who asked.

The standard library only; it must not share a mistake with the product. A keyed effect happens once, as with any
good provider: the same key gets the stored answer. An effect without a key happens as often as it is asked for.
Run as a program: `ledger_server.py FILE` prints its port, and serves until its standard input is closed.
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
#: What became of a request for an effect.
HAPPENED, REPLAYED, REFUSED, LOOKED = "happened", "replayed", "refused", "looked"


class Ledger:
    """One writer at a time: the numbers are the order in which things happened."""

    def __init__(self, path: str) -> None:
        self._lock = threading.Lock()
        self._rows = sqlite3.connect(path, check_same_thread=False, isolation_level=None)
        self._rows.row_factory = sqlite3.Row
        # It is never killed: only what it serves is.
        self._rows.execute("PRAGMA synchronous = OFF")
        self._rows.executescript(TABLES)

    def effect(self, asked: dict[str, Any]) -> dict[str, Any]:
        """A tool asks for its effect."""
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
        """Somebody asks the model; the answer is how often that step has been asked for."""
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
        """Whether a call has happened. Where it has not, nobody up to that epoch makes it happen any more."""
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
                return  # the client was killed while it sent this
            answer = json.dumps(handlers[self.path](json.loads(body))).encode()
            try:
                self.send_response(200)
                self.send_header("Content-Length", str(len(answer)))
                self.end_headers()
                self.wfile.write(answer)
            except OSError:
                """Who asked is dead. It has happened all the same."""

        def log_message(self, *_: Any) -> None:
            """Nobody reads it."""

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
