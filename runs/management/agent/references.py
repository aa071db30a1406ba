"""How the command line names things: runs by their id or its beginning, and who is at the keyboard."""

from __future__ import annotations

import os
import pwd
import re
from typing import ClassVar
from uuid import UUID

from agentops.projects.access import SYSTEM, scoped
from runs.access import expired
from runs.errors import RunNotFound, RunRefusal
from runs.models import AgentRun
from timeline.models import Tombstone

MIN_PREFIX = 4
MAX_CANDIDATES = 10
HEX = re.compile(r"[0-9a-f]{1,32}", re.ASCII)


class AmbiguousRun(RunRefusal):
    """The beginning of an id that several runs have, or that is too short to name one."""

    code = "ambiguous_run"
    exit_code: ClassVar[int] = 4


def find_run(reference: str) -> AgentRun:
    """The run with this id, or the only one whose id begins like this."""
    bounds = _bounds(reference)
    runs = AgentRun.objects.filter(pk__gte=bounds[0], pk__lte=bounds[1]) if bounds else AgentRun.objects.none()
    found = list(scoped(runs, SYSTEM).select_related("project").order_by("-pk")[: MAX_CANDIDATES + 1])
    if not found:
        raise _missing(reference, bounds)
    short = len(reference.replace("-", "")) < MIN_PREFIX
    if len(found) > 1 or short:
        problem = f"is too short, give {MIN_PREFIX} characters or more" if short else "names more than one run"
        raise AmbiguousRun(f"{reference!r} {problem}: {_listed(found)}", candidates=[str(run.pk) for run in found])
    return found[0]


def operator() -> str:
    """Who acts, for logs and the audit log. By the user id: the environment says what it likes."""
    try:
        name = pwd.getpwuid(os.getuid()).pw_name
    except KeyError:
        name = str(os.getuid())
    return f"cli:{name}"


def _missing(reference: str, bounds: tuple[UUID, UUID] | None) -> RunRefusal:
    """Why there is no such run: of one that was removed its tombstone tells."""
    stones = list(Tombstone.objects.filter(pk__gte=bounds[0], pk__lte=bounds[1])[:2]) if bounds else []
    if len(stones) == 1:
        return expired(stones[0])
    return RunNotFound(f"run not found: {reference[:64]!r}")


def _bounds(reference: str) -> tuple[UUID, UUID] | None:
    """The first and the last id that begin with `reference`, with its dashes in place or with none."""
    text = reference.lower()
    digits = text.replace("-", "")
    if not HEX.fullmatch(digits):
        return None
    low, high = UUID(digits.ljust(32, "0")), UUID(digits.ljust(32, "f"))
    if text != digits and not str(low).startswith(text):
        return None
    return low, high


def _listed(runs: list[AgentRun]) -> str:
    shown = ", ".join(f"{run.pk} ({run.status})" for run in runs[:MAX_CANDIDATES])
    return shown if len(runs) <= MAX_CANDIDATES else f"{shown} and more"
