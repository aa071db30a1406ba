"""Calls after a commit: an error is logged and does not stop the other calls, for every kind of callable."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial

import pytest
from django.db import transaction

from agentops.base.database.statements import after_commit

pytestmark = pytest.mark.django_db(transaction=True)


class Station:
    """A callable without a `__name__`."""

    def __call__(self, *news: str, **more: str) -> None:
        raise LookupError(f"nobody hears {news} {more}")


def refuse(*news: str, **more: str) -> None:
    Station()(*news, **more)


@pytest.mark.parametrize("call", [refuse, partial(refuse), Station()], ids=["function", "partial", "object"])
@pytest.mark.parametrize("is_in_transaction", [True, False])
def test_an_error_is_logged_and_the_other_calls_are_made(
    call: Callable[..., None], is_in_transaction: bool, caplog: pytest.LogCaptureFixture
) -> None:
    made: list[str] = []

    def tell() -> None:
        after_commit(call, "that", by="noon")
        after_commit(made.append, "second")

    if is_in_transaction:
        with transaction.atomic():
            tell()
            assert made == []
    else:
        tell()

    assert made == ["second"]
    assert "nobody hears ('that',) {'by': 'noon'}" in caplog.text


def test_a_rollback_discards_the_calls() -> None:
    made: list[str] = []
    with transaction.atomic():
        after_commit(made.append, "first")
        transaction.set_rollback(True)

    assert made == []
