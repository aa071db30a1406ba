"""Wrong values anywhere in a file are read or refused. No importer raises any other exception."""

from __future__ import annotations

import copy
import json
from collections.abc import Iterator
from typing import Any

import pytest

from runs.external.importers.base import ImportedRun, ImportFile, ImportRefused
from runs.external.importers.formats import find
from tests.support.recordings import recording

WRONG = [None, True, -7, 1.5, 10**30, "", "x", "\u0000", "n" * 300, [], [7], ["x"], [[]], [{}], {}, {"a": 1}]
#: Maximum number of locations tried in a file.
MAX_PLACES = 300
#: Coprime to the number of wrong values, so that neighbours get different ones.
STEP = 7
FILES = {
    "atif": "atif/login-trace.trajectory.json",
    "openai-chat": "tau-bench/gpt-4o-airline.subset.json",
    "swe-agent": "swe-agent/033278-6e44b9__sweagenttestrepo-1c2844.traj",
    "mini-swe-agent": "mini-swe-agent/django__django-14765.traj.json",
    "openhands": "openhands/basic.json",
    "inspect": "inspect/log_images_tc.json",
    "inspect events": "inspect/utility_subagent_loop.json",
    "langfuse gemini": "langfuse-traces/google-adk-2025-08-28.json",
    "langfuse openai": "langfuse-traces/openai-agents-2025-09-30.json",
    "langfuse parts": "langfuse-traces/pydantic-ai-tools-2025-12-04.json",
    "langfuse attributes": "langfuse-traces/agno-2025-06-11.json",
}


def shortened(value: Any) -> Any:
    """Return a document with short lists and texts that still has every kind of location."""
    if isinstance(value, list):
        return [shortened(item) for item in value[:6]]
    if isinstance(value, dict):
        return {name: shortened(member) for name, member in value.items()}
    return value[:80] if isinstance(value, str) else value


def places(value: Any, path: tuple[str | int, ...] = ()) -> Iterator[tuple[str | int, ...]]:
    members = enumerate(value) if isinstance(value, list) else value.items() if isinstance(value, dict) else ()
    for key, member in members:
        yield (*path, key)
        yield from places(member, (*path, key))


def replaced(document: Any, path: tuple[str | int, ...], value: Any) -> Any:
    changed = copy.copy(document)
    changed[path[0]] = replaced(document[path[0]], path[1:], value) if path[1:] else value
    return changed


@pytest.mark.slow
@pytest.mark.parametrize("kind", FILES)
def test_every_wrong_value_is_read_or_refused(kind: str) -> None:
    document = shortened(json.loads(recording(FILES[kind]).read_bytes()))
    name = kind.partition(" ")[0]
    all_places = list(places(document))
    read = refused = 0
    for number, place in enumerate(all_places[:: len(all_places) // MAX_PLACES + 1]):
        value = WRONG[number * STEP % len(WRONG)]
        file = ImportFile("file", json.dumps(replaced(document, place, value)).encode())
        try:
            items = list(find(file, name).read(file))
        except ImportRefused:
            refused += 1
            continue
        read += 1
        assert isinstance(items[0], ImportedRun)
    assert read > 0 < refused
