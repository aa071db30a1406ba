"""Fixtures of the engine's tests: a scripted model, and workers that die at a crash point."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterator
from datetime import UTC, datetime
from itertools import count
from pathlib import Path
from typing import Any
from uuid import UUID

import pytest
from pytest_django import Settings

from runs import chaos
from runs.hooks.base import HookContext
from runs.lifecycle import places, suspects
from runs.lifecycle.suspicion import CHILD_SEPARATOR
from runs.models import Agent, AgentRun
from runs.worker.worker import Worker
from tests.support.engine import DECIDES, DieAt, Died, MakeHelper, MakeScripted, added_parts, saying
from tests.support.factories import make_agent, make_run
from tests.support.scripted_model import PLAYS, Move, Play

_numbers = itertools.count(1)
#: One crash window at a time; test_calls_ahead.py tests concurrent calls.
ONE_BY_ONE = {"parallel_tools": 1}
Told = Callable[..., None]


@pytest.fixture(autouse=True)
def quick(quick_retries: None) -> None:
    """Shorten the retry delays for every test in this directory."""


@pytest.fixture
def die_at(monkeypatch: pytest.MonkeyPatch, worker: Worker) -> DieAt:
    """Drive a run to the `hit`th pass of a crash point and expire its lease; return False if it was never reached.

    Each drive uses a new process name that holds only this run; with `alone`, that process is recorded as dead.
    """
    parent, numbers = worker.owner, count(1)

    def go(run: AgentRun, name: str, *, hit: int = 1, alone: bool = False) -> bool:
        left = [name] * hit

        def point(passed: str) -> None:
            if passed in left:
                left.remove(passed)
                if not left:
                    raise Died

        monkeypatch.setattr(chaos, "point", point)
        monkeypatch.setattr(worker, "owner", f"{parent}{CHILD_SEPARATOR}{next(numbers)}")
        try:
            worker.drive(run.pk)
        except Died:
            if alone:
                assert suspects.note_death_alone(worker.owner)
            AgentRun.objects.filter(pk=run.pk).update(lease_expires_at=datetime(2020, 1, 1, tzinfo=UTC))
            return True
        finally:
            monkeypatch.setattr(chaos, "point", lambda _: None)
            monkeypatch.setattr(worker, "owner", parent)
        return False

    return go


@pytest.fixture
def ledger(tmp_path: Path) -> Path:
    return tmp_path / "ledger"


@pytest.fixture
def scripted(ledger: Path) -> Iterator[MakeScripted]:
    """Create a queued run whose model follows `calls`, or a function that returns the moves of each call."""
    mine: list[str] = []

    def make(
        play: Play | None = None, *, calls: Any = (), tools: Any = None, max_steps: int = 50, **settings: Any
    ) -> AgentRun:
        settings = {"ledger": str(ledger), "calls": list(calls), **ONE_BY_ONE} | settings
        if play is not None:
            mine.append(f"play-{next(_numbers)}")
            PLAYS[mine[-1]] = play
            settings["play"] = mine[-1]
        agent = make_agent(
            provider="scripted",
            model="scripted-model",
            instructions="Follow the script.",
            tools=tools or ["ledger_read", "ledger_idempotent", "ledger_once"],
            settings={"on_unknown_tool": None} | settings,
            max_steps=max_steps,
        )
        return make_run(agent, "Go.")

    yield make
    for name in mine:
        del PLAYS[name]


@pytest.fixture
def effects(ledger: Path) -> Callable[[], list[str]]:
    """Return the IDs of the calls that had an effect, in order."""

    def read() -> list[str]:
        return [line.split(" ")[1] for line in ledger.read_text().splitlines()] if ledger.exists() else []

    return read


@pytest.fixture
def model_calls(ledger: Path) -> Callable[[], list[int]]:
    """Return the numbers of the model calls, in order."""

    def read() -> list[int]:
        path = Path(f"{ledger}.calls")
        return [int(line.split(" ")[0]) for line in path.read_text().splitlines()] if path.exists() else []

    return read


@pytest.fixture
def told(settings: Settings) -> Iterator[Told]:
    """Set the decisions of the hooks in tests/support/engine.py: name → function of the context."""
    settings.AGENTOPS_HOOK_MODULES = ["tests.support.engine"]

    def tell(**decides: Callable[[HookContext], Any]) -> None:
        DECIDES.update(decides)

    with added_parts():
        yield tell
    DECIDES.clear()


@pytest.fixture
def helper() -> Iterator[MakeHelper]:
    """Create an agent in the run's project whose model makes these turns, or plays one function."""
    names: list[str] = []

    def make(run: AgentRun, slug: str, *turns: list[Move] | Play, **fields: Any) -> Agent:
        names.append(f"helper-{len(names)}-{slug}")
        PLAYS[names[-1]] = turns[0] if callable(turns[0]) else saying(*(turn for turn in turns if not callable(turn)))
        more = fields.pop("settings", {})
        return make_agent(
            run.project,
            slug=slug,
            provider="scripted",
            model="scripted-model",
            tools=fields.pop("tools", ["ledger_read", "spawn_agents", "handoff", "ask_user"]),
            settings={"play": names[-1], "on_unknown_tool": None, **more},
            **fields,
        )

    yield make
    for name in names:
        del PLAYS[name]


@pytest.fixture
def woken(monkeypatch: pytest.MonkeyPatch) -> list[UUID]:
    """Collect the IDs of the runs for which wake messages would be sent, in order."""
    ids: list[UUID] = []
    monkeypatch.setattr(places, "wake", lambda run: ids.append(run.pk))
    return ids
