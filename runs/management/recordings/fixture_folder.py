"""Writes fixtures into a folder."""

from __future__ import annotations

import os
import re
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from django.core.management.base import CommandError

from agentops.accounts.management.base import EXIT_REFUSED, EXIT_UNREADABLE
from runs.fixtures import fixture_files
from runs.fixtures.format import Fixture

_UNFIT = re.compile(r"[^A-Za-z0-9._-]+")


def fixture_name(text: str) -> str:
    """Return a text as the name of a fixture."""
    return _UNFIT.sub("-", text).lstrip("._-")[:128] or "fixture"


def write_fixtures(fixtures: Mapping[str, Fixture], folder: Path, *, force: bool) -> list[Path]:
    """Write the fixtures by their names, and return their files. Raises `CommandError`.

    Writes nothing if a file exists, unless `force`. Readers never see a partial file.
    """
    paths = free_paths(list(fixtures), folder, force=force)
    new_paths = [path.with_name(f".{path.name}.{os.getpid()}") for path in paths]
    try:
        # Write all files before replacing the first, so that a full disk changes nothing.
        for new_path, fixture in zip(new_paths, fixtures.values(), strict=True):
            new_path.write_text(fixture_files.dumps(fixture), encoding="utf-8")
        for new_path, path in zip(new_paths, paths, strict=True):
            new_path.replace(path)
    except OSError as error:
        raise _unwritable(error, folder) from error
    finally:
        for new_path in new_paths:
            new_path.unlink(missing_ok=True)
    return paths


def free_paths(names: Sequence[str], folder: Path, *, force: bool) -> list[Path]:
    """Create the folder, and return the paths for these fixtures. Raises `CommandError` if a file exists."""
    paths = [folder / f"{name}.json" for name in names]
    try:
        folder.mkdir(parents=True, exist_ok=True)
        existing = [path for path in paths if path.exists()]
    except OSError as error:
        raise _unwritable(error, folder) from error
    if existing and not force:
        raise CommandError(f"{existing[0]} already exists; pass --force to overwrite it", returncode=EXIT_REFUSED)
    return paths


def _unwritable(error: OSError, folder: Path) -> CommandError:
    problem = f"{error.filename or folder}: {error.strerror or 'cannot be written'}"
    return CommandError(problem, returncode=EXIT_UNREADABLE)


def facts_of(path: Path, fixture: Fixture) -> dict[str, Any]:
    """Return the facts of a file: its calls, and whether it marks the end of the recording."""
    calls = len(fixture.answers)
    tools = sum(len(call.tool_calls) for call in fixture.answers)
    return {"file": str(path), "calls": calls, "tool_calls": tools, "ends": fixture.ends_after(calls)}
