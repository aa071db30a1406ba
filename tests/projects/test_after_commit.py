"""What is done after a commit: an error of it is logged, and costs neither the commit nor what else is to be done."""

from __future__ import annotations

import pytest
from django.db import connection, transaction

from agentops.projects.after_commit import after_commit

pytestmark = pytest.mark.django_db(transaction=True)


def test_an_error_after_a_commit_is_logged(caplog: pytest.LogCaptureFixture) -> None:
    told: list[str] = []

    def fail(what: str) -> None:
        raise OSError(what)

    with transaction.atomic():
        after_commit(fail, "no room")
        after_commit(told.append, "the next one")

    assert told == ["the next one"]
    assert "no room" in caplog.text
    assert connection.get_autocommit()
