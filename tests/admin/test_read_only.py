"""Rows that the program writes are read-only: no add, no change, no delete."""

from __future__ import annotations

from typing import Any

import pytest
from django.test import Client

from agentops.accounts.models import Role
from tests.support.accounts import make_person
from tests.support.admin.every_table import add_url, list_url, page_url, registered, rows_of
from tests.support.admin.kept_rows import Filled
from tests.support.admin.staff import client_of

BY_PEOPLE = {"Agent", "ApiKey", "Membership", "Project"}
WITH_ACTIONS = {"AgentRun", "ApiKey"}
RECORDS = [model for model in registered() if model.__name__ not in BY_PEOPLE]


@pytest.mark.parametrize("model", RECORDS, ids=lambda model: model._meta.label)
def test_records_cannot_be_changed(filled: Filled, model: Any) -> None:
    client = filled.client
    row = rows_of(model, filled.project)[0]
    before = list(model._default_manager.order_by("pk").values())

    for url in (add_url(model), page_url(row), page_url(row, "delete")):
        assert client.post(url, {"post": "yes", "status": "completed"}).status_code == 403, url
    ticked = {"action": "delete_selected", "_selected_action": str(row.pk), "post": "yes", "index": "0"}
    assert client.post(list_url(model), ticked).status_code == (302 if model.__name__ in WITH_ACTIONS else 403)

    assert list(model._default_manager.order_by("pk").values()) == before


def test_only_staff_may_read(filled: Filled) -> None:
    somebody = client_of(make_person(filled.project, Role.ADMIN))
    for model in registered():
        for url in (list_url(model), page_url(rows_of(model, filled.project)[0])):
            assert somebody.get(url).status_code == 302
            assert Client().get(url).status_code == 302
