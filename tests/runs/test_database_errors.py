"""Classification of database errors: which are waited out, and which concern only one row."""

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
def test_a_read_only_server_is_waited_out() -> None:
    with transaction.atomic(), connection.cursor() as cursor:
        cursor.execute("SET TRANSACTION READ ONLY")
        with pytest.raises(InternalError) as refusal, transaction.atomic():
            AgentRun.objects.update(title="")

    raise_unless_storage_error(refusal.value)
    assert concerns_all(refusal.value)


@pytest.mark.parametrize(
    "error", [OperationalError, InterfaceError, InternalError, ProgrammingError, NotSupportedError]
)
def test_a_failed_database_concerns_all_rows(error: type[Exception]) -> None:
    assert concerns_all(error("broken"))


@pytest.mark.parametrize("error", [DataError, IntegrityError, ValueError, KeyError])
def test_an_error_of_one_row_does_not_concern_all_rows(error: type[Exception]) -> None:
    assert not concerns_all(error("refused"))
