"""Which errors of the database are waited out, and which concern one row alone."""

from __future__ import annotations

import pytest
from django.db import connection, transaction
from django.db.utils import (
    DataError,
    IntegrityError,
    InterfaceError,
    InternalError,
    NotSupportedError,
    OperationalError,
    ProgrammingError,
)

from runs.database_errors import concerns_all, raise_unless_storage_error
from runs.models import AgentRun


def test_an_internal_error_of_another_kind_is_not_waited_out() -> None:
    with pytest.raises(InternalError, match="a page is broken"):
        raise_unless_storage_error(InternalError("a page is broken"))


@pytest.mark.postgres
@pytest.mark.django_db(transaction=True)
def test_a_server_that_takes_no_writes_is_waited_for() -> None:
    with transaction.atomic(), connection.cursor() as cursor:
        cursor.execute("SET TRANSACTION READ ONLY")
        with pytest.raises(InternalError) as refusal, transaction.atomic():
            AgentRun.objects.update(title="")

    raise_unless_storage_error(refusal.value)
    assert concerns_all(refusal.value)


@pytest.mark.parametrize(
    "error", [OperationalError, InterfaceError, InternalError, ProgrammingError, NotSupportedError]
)
def test_a_database_that_fails_concerns_all(error: type[Exception]) -> None:
    assert concerns_all(error("broken"))


@pytest.mark.parametrize("error", [DataError, IntegrityError, ValueError, KeyError])
def test_what_is_wrong_with_one_row_does_not(error: type[Exception]) -> None:
    assert not concerns_all(error("refused"))
