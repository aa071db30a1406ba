"""aimock, a third-party server with the protocols of Anthropic and OpenAI and scripted answers.

The suite starts it once for each process. The test chooses a prompt, which identifies its script.
"""

from __future__ import annotations

import json
import re
import subprocess
from itertools import pairwise
from pathlib import Path
from typing import Any

import httpx

from tests.support.node_packages import install
from tests.support.waiting import eventually
from tests.support.web.recording_proxy import RecordingProxy, SentRequest

PACKAGES = Path(__file__).parent / "mock_server"
#: Request path → the member of the request that holds the conversation.
CONVERSATIONS = {"/v1/messages": "messages", "/v1/chat/completions": "messages", "/v1/responses": "input"}
#: Members of a fixture that are not part of its response.
CONNECTION = ("latency", "chunkSize", "truncateAfterChunks", "disconnectAfterMs")
Json = dict[str, Any]


class MockModelServer:
    """The server, behind a proxy that records the exact bytes of the requests."""

    def __init__(self, home: Path) -> None:
        program = install(PACKAGES) / "node_modules/@copilotkit/aimock/dist/cli.js"
        self._log = home / "mock-model-server.log"
        # Scripts in a file are not validated, so broken arguments are possible.
        options = ["-p", "0", "-h", "127.0.0.1", "-f", str(PACKAGES / "fixtures.json"), "--journal-max", "0"]
        with self._log.open("w") as log:
            self._process = subprocess.Popen(["node", str(program), *options], stdout=log, stderr=log)
        port = eventually(self._port, within_s=20, why=self._log.read_text)
        self._control = f"http://127.0.0.1:{port}/__aimock"
        self._proxy = RecordingProxy(port)
        self.url = f"http://127.0.0.1:{self._proxy.port}"

    @property
    def environment(self) -> dict[str, str]:
        """Return the variables that make the vendors' libraries use this server."""
        return {
            "ANTHROPIC_BASE_URL": self.url, "ANTHROPIC_API_KEY": "sk-of-nobody",
            "OPENAI_BASE_URL": f"{self.url}/v1", "OPENAI_API_KEY": "sk-of-nobody",
        }  # fmt: skip

    def script(self, prompt: str, *turns: Json | list[Json], resumes: bool = False) -> None:
        """Answer the conversation that `prompt` begins with these turns. All but the last turn end with calls.

        A turn is a response in the server's format, or a list of responses to a repeated request; the last one repeats.
        The members in CONNECTION configure its connection. `resumes` is for a prompt within a conversation.
        """
        fixtures: list[Json] = []
        # Matched by the last result, because protocols count the turns of a conversation differently.
        turn_match: Json = {} if resumes else {"hasToolResult": False}
        for turn in turns:
            responses = turn if isinstance(turn, list) else [turn]
            match = {"userMessage": prompt, **turn_match}
            # The first match wins, so later turns, which match more specifically, come first.
            fixtures[:0] = [_fixture(match, place, responses) for place in range(len(responses))]
            if calls := responses[-1].get("toolCalls"):
                turn_match = {"toolCallId": calls[-1]["id"]}
        answer = httpx.post(f"{self._control}/fixtures", json={"fixtures": fixtures})
        assert answer.status_code == 200, answer.text

    def sent(self, prompt: str) -> list[SentRequest]:
        """Return the model calls of the conversation that `prompt` begins, in order."""
        return [request for request in self._proxy.requests if prompt in text_of(json.loads(request.body))]

    def journal(self, prompt: str) -> list[Json]:
        """Return the server's log of the same calls: each parsed request with its answer."""
        entries = httpx.get(f"{self._control}/journal").json()
        return [entry for entry in entries if prompt in text_of(entry["body"])]

    def close(self) -> None:
        self._proxy.close()
        self._process.kill()
        self._process.wait(10)

    def _port(self) -> int:
        found = re.search(r"listening on http://127\.0\.0\.1:(\d+)", self._log.read_text())
        return int(found[1]) if found else 0


def _fixture(match: Json, place: int, responses: list[Json]) -> Json:
    """Return a fixture for one response to a repeated request. The last response answers all further requests."""
    answer = responses[place]
    order = {"sequenceIndex": place} if place < len(responses) - 1 else {}
    connection = {name: answer[name] for name in CONNECTION if name in answer}
    response = {name: value for name, value in answer.items() if name not in CONNECTION}
    return {"match": match | order, "response": response, **connection}


def assert_prefixes(requests: list[SentRequest]) -> None:
    """Check that each request repeats the previous one byte for byte, and continues it."""
    bodies = [json.loads(request.body) for request in requests]
    for before, after in pairwise(bodies):
        name = CONVERSATIONS[requests[0].path.partition("?")[0]]
        said, then = before.pop(name), after[name]
        assert text_of(then[: len(said)]) == text_of(said)
        # The rest, including tools and instructions, stays the same.
        assert text_of({key: value for key, value in after.items() if key != name}) == text_of(before)


def text_of(value: Any) -> str:
    """Return JSON text with the members in their original order."""
    return json.dumps(value, ensure_ascii=False)
