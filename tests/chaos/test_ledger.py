"""The world outside must be right by itself: everything that the rig says of effects rests on it."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.chaos.environment.ledger_client import LedgerClient, tell


@pytest.fixture
def world(tmp_path: Path) -> Iterator[LedgerClient]:
    world = LedgerClient(tmp_path)
    yield world
    world.close()


def ask(world: LedgerClient, effect: str, *, call: str = "c1", epoch: int = 1, output: str = "done") -> dict[str, Any]:
    return tell(
        world.url, "effect", run="r1", call=call, key=f"key-{call}", effect=effect, attempt=0, epoch=epoch,
        output=output,
    )  # fmt: skip


def test_the_same_key_is_one_effect_and_gets_the_first_answer(world: LedgerClient) -> None:
    assert ask(world, "idempotent", output="first") == {"fate": "happened", "output": "first"}
    assert ask(world, "idempotent", output="second", epoch=2) == {"fate": "replayed", "output": "first"}
    assert ask(world, "idempotent", call="c2")["fate"] == "happened"


def test_without_a_key_it_happens_as_often_as_it_is_asked_for(world: LedgerClient) -> None:
    assert [ask(world, "at_most_once")["fate"] for _ in range(3)] == ["happened"] * 3


def test_a_look_changes_nothing(world: LedgerClient) -> None:
    assert [ask(world, "read")["fate"] for _ in range(2)] == ["looked"] * 2


def test_everything_is_numbered_as_it_came(world: LedgerClient) -> None:
    for epoch in (1, 3, 2):
        ask(world, "read", epoch=epoch)
    arrivals = world.everything()["arrivals"]
    assert [(each["number"], each["epoch"]) for each in arrivals] == [(1, 1), (2, 3), (3, 2)]


def test_what_is_settled_as_not_done_is_not_done_later_by_those_before(world: LedgerClient) -> None:
    assert world.settle("c1", 4) == {"done": False}
    assert ask(world, "at_most_once", epoch=4)["fate"] == "refused"
    assert ask(world, "idempotent", epoch=3)["fate"] == "refused"
    assert ask(world, "at_most_once", epoch=5)["fate"] == "happened"
    assert world.settle("c1", 5) == {"done": True, "output": "done"}


def test_requests_to_the_model_are_counted_by_agent_and_step(world: LedgerClient) -> None:
    def request(agent: str, step: int) -> int:
        return int(tell(world.url, "request", agent=agent, step=step)["ordinal"])

    assert [request("a", 1), request("a", 1), request("a", 2), request("b", 1)] == [1, 2, 1, 1]
    assert world.requests() == 4
