"""Tests of the ledger, on which all checks of effects depend."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.chaos.environment.ledger_client import LedgerProcess, tell


@pytest.fixture
def ledger(tmp_path: Path) -> Iterator[LedgerProcess]:
    ledger = LedgerProcess(tmp_path)
    yield ledger
    ledger.close()


def ask(
    ledger: LedgerProcess, effect: str, *, call: str = "c1", epoch: int = 1, output: str = "done"
) -> dict[str, Any]:
    return tell(
        ledger.url,
        "effect",
        run="r1",
        call=call,
        key=f"key-{call}",
        effect=effect,
        attempt=0,
        epoch=epoch,
        output=output,
    )


def test_a_repeated_key_has_one_effect_and_gets_the_first_answer(ledger: LedgerProcess) -> None:
    assert ask(ledger, "idempotent", output="first") == {"fate": "happened", "output": "first"}
    assert ask(ledger, "idempotent", output="second", epoch=2) == {"fate": "replayed", "output": "first"}
    assert ask(ledger, "idempotent", call="c2")["fate"] == "happened"


def test_without_a_key_every_request_has_an_effect(ledger: LedgerProcess) -> None:
    assert [ask(ledger, "at_most_once")["fate"] for _ in range(3)] == ["happened"] * 3


def test_a_read_has_no_effect(ledger: LedgerProcess) -> None:
    assert [ask(ledger, "read")["fate"] for _ in range(2)] == ["looked"] * 2


def test_arrivals_are_numbered_in_order(ledger: LedgerProcess) -> None:
    for epoch in (1, 3, 2):
        ask(ledger, "read", epoch=epoch)
    arrivals = ledger.everything()["arrivals"]
    assert [(each["number"], each["epoch"]) for each in arrivals] == [(1, 1), (2, 3), (3, 2)]


def test_a_voided_call_is_refused_to_earlier_epochs(ledger: LedgerProcess) -> None:
    assert ledger.settle("c1", 4) == {"done": False}
    assert ask(ledger, "at_most_once", epoch=4)["fate"] == "refused"
    assert ask(ledger, "idempotent", epoch=3)["fate"] == "refused"
    assert ask(ledger, "at_most_once", epoch=5)["fate"] == "happened"
    assert ledger.settle("c1", 5) == {"done": True, "output": "done"}


def test_requests_to_the_model_are_counted_by_agent_and_step(ledger: LedgerProcess) -> None:
    def request(agent: str, step: int) -> int:
        return int(tell(ledger.url, "request", agent=agent, step=step)["ordinal"])

    assert [request("a", 1), request("a", 1), request("a", 2), request("b", 1)] == [1, 2, 1, 1]
    assert ledger.requests() == 4
