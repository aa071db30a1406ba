"""The arguments of a step: what pages show, the idempotency key, and changes by an approver."""

from __future__ import annotations

from typing import Any

from agentops.durable.arguments import Arguments


class Client:
    def __str__(self) -> str:
        return "<client>"


def charge(client: Any, cents: int, *items: str, currency: str = "EUR", **more: Any) -> tuple[Any, ...]:
    return client, cents, items, currency, more


def idempotent(cents: int, *, idempotency_key: str) -> tuple[int, str]:
    return cents, idempotency_key


def call(arguments: Arguments, *, key: str | None = "k1", changed: Any = None) -> Any:
    return arguments.call(key=key, changed=changed)()


def test_the_site_shows_arguments_by_name() -> None:
    arguments = Arguments(charge, (Client(), 5, "a", "b"), {"note": "x"})

    assert arguments.shown == {"client": "<client>", "cents": 5, "items": ["a", "b"], "note": "x"}
    assert Arguments(charge, (), {"unknown": 1}).shown == {"unknown": 1}
    assert Arguments(idempotent, (1, 2, 3), {}).shown == {"args": [1, 2, 3], "kwargs": {}}
    assert Arguments(max, (3, 4), {}).shown == {"args": [3, 4]}


def test_unchanged_arguments_are_the_objects_of_the_caller() -> None:
    client = Client()
    arguments = Arguments(charge, (client, 5, "a"), {"note": "x"})

    assert call(arguments) == (client, 5, ("a",), "EUR", {"note": "x"})
    changed = {**arguments.shown, "cents": 3, "items": ["c", "d"], "currency": "CHF"}
    assert call(arguments, changed=changed) == (client, 3, ("c", "d"), "CHF", {"note": "x"})


def test_changed_arguments_replace_all() -> None:
    arguments = Arguments(charge, (1, 5), {"currency": "CHF"})

    assert call(arguments, changed={"client": 2, "cents": 6}) == (2, 6, (), "EUR", {})


def test_idempotency_key_is_given_to_a_parameter_of_that_name() -> None:
    assert call(Arguments(idempotent, (5,), {})) == (5, "k1")
    assert call(Arguments(idempotent, (), {"cents": 5, "idempotency_key": "mine"})) == (5, "mine")
    assert call(Arguments(charge, (1, 2), {}))[-1] == {}
