"""The shared recordings of these tests. Tests are skipped if the recordings are missing.

Imports nothing of the code under test except the converter's entry point.
"""

from __future__ import annotations

from functools import cache
from pathlib import Path

from runs.fixtures.converting.convert import convert_file
from runs.fixtures.format import Fixture
from tests.support.recordings.recorded_files import recording

TAU = "tau-bench/gpt-4o-airline.subset.json"
TAU_RECORDS = 17
SESSIONS = [
    "claude-code/04-0b015eb1c2-0.jsonl",
    "claude-code/28-a8bc758709-0.jsonl",
    "claude-code/4c-02af2759b6-0.jsonl",
    "claude-code/51-0c10bf7b7a-0.jsonl",
    "claude-code/5c-1039ad85f4-0.jsonl",
    "claude-code/68-e0ff0d6706-0.jsonl",
    "claude-code/7e-d4051c8a85-0.jsonl",
    "claude-code/89-7eb280e769-13.jsonl",
    "claude-code/ac-3f02a3c337-0.jsonl",
    "claude-code/ad-a8171575ce-0.jsonl",
    "claude-code/b0-be9accda39-0.jsonl",
    "claude-code/b6-f735fbac66-0.jsonl",
    "claude-code/dc-49cb8a2a42-0.jsonl",
    "claude-code-growing/768de5d6.0.jsonl",
    "claude-code-growing/768de5d6.1.jsonl",
    "claude-code-growing/768de5d6.2.jsonl",
    "claude-code-growing/768de5d6.3.jsonl",
]
NAMES = [*SESSIONS, *(f"{TAU}#{index}" for index in range(TAU_RECORDS))]


def path_of(name: str) -> Path:
    """Return the file that holds the recording. Skip the test if it is missing."""
    return recording(name.partition("#")[0])


def fixture_of(name: str) -> Fixture:
    path = path_of(name)
    return _converted(path)[int(name.split("#")[1]) if "#" in name else 0]


@cache
def _converted(path: Path) -> list[Fixture]:
    return [each.fixture for each in convert_file(path)]
