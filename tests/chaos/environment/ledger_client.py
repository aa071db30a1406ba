"""Access to the ledger: requests from tools and models on workers, and start and end of its process.

Uses only the standard library, so that workers load no additional modules.
"""

from __future__ import annotations

import json
import subprocess
import sys
from http.client import HTTPConnection
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

#: Reached only on a heavily loaded machine; no test waits this long otherwise.
TIMEOUT_S = 60


def tell(url: str, path: str, **words: Any) -> dict[str, Any]:
    """Send one request to the ledger and return its answer."""
    connection = HTTPConnection(urlsplit(url).netloc, timeout=TIMEOUT_S)
    try:
        connection.request("POST", f"/{path}", json.dumps(words), {"Content-Type": "application/json"})
        answer: dict[str, Any] = json.loads(connection.getresponse().read())
        return answer
    finally:
        connection.close()


class LedgerProcess:
    """The process that runs the ledger."""

    def __init__(self, directory: Path) -> None:
        program = Path(__file__).with_name("ledger_server.py")
        self._process = subprocess.Popen(
            [sys.executable, "-I", "-S", str(program), str(directory / "ledger.sqlite3")],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
        )
        assert self._process.stdout is not None
        self.url = f"http://127.0.0.1:{int(self._process.stdout.readline())}"

    def requests(self) -> int:
        return int(tell(self.url, "count")["requests"])

    def everything(self) -> dict[str, list[dict[str, Any]]]:
        return tell(self.url, "everything")

    def settle(self, call: str, epoch: int) -> dict[str, Any]:
        return tell(self.url, "settle", call=call, epoch=epoch)

    def close(self) -> None:
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        self._process.stdin.close()
        self._process.wait(20)
        self._process.stdout.close()
