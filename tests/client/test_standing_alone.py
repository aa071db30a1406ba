"""agentops.client needs nothing of the server: neither its code, nor Django, nor settings."""

from __future__ import annotations

import json
import subprocess
import sys

from agentops.client.event_stream import Frame, FrameParser

SCRIPT = """
import json, sys
from agentops import client
client.Client("http://127.0.0.1:1", "key").close()
client.Recorder("http://127.0.0.1:1", "key", agent="a")
names = {name for name in sys.modules if name.startswith("agentops.") and not name.startswith("agentops.client")}
print(json.dumps([sorted(names), sorted({name.partition(".")[0] for name in sys.modules})]))
"""


def test_it_imports_nothing_of_the_server(tmp_path: object) -> None:
    process = subprocess.run(
        [sys.executable, "-c", SCRIPT], env={"PATH": ""}, cwd=str(tmp_path), capture_output=True, text=True, check=True
    )

    of_agentops, packages = json.loads(process.stdout)
    assert of_agentops == []
    assert not {"django", "rest_framework", "celery", "redis", "psycopg", "runs", "timeline"} & set(packages)


def test_frames_may_be_cut_anywhere() -> None:
    stream = "\ufeff: hi\nretry: 1500\r\n\r\nid: 1\ndata: a\u2028b\r\rid:2\nevent: end\ndata:\ndata: x\n\n".encode()
    frames = [Frame("message", "a\u2028b", "1"), Frame("end", "\nx", "2")]

    for size in (1, 2, 3, len(stream)):
        parser = FrameParser()
        pieces = [stream[start : start + size] for start in range(0, len(stream), size)]
        assert [frame for piece in pieces for frame in parser.feed(piece)] == frames
        assert parser.retry_s == 1.5
