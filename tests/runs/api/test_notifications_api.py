"""`…/notifications`: the inbox of a project and the read state of a user."""

from __future__ import annotations

from typing import Any
from uuid import UUID, uuid4

import pytest
from django.contrib.auth.models import User
from django.test import Client

from agentops.accounts import notifications
from agentops.accounts.models import Notification, NotificationReceipt, Project, Role
from agentops.accounts.notifications import notify
from tests.support.factories import make_person, make_project, with_key

LIST = "/api/projects/alpha/notifications"


@pytest.fixture
def project(db: None) -> Project:
    return make_project("alpha")


@pytest.fixture
def ann(project: Project) -> User:
    return make_person(project, Role.VIEWER)


@pytest.fixture
def client(ann: User) -> Client:
    client = Client()
    client.force_login(ann)
    return client


def told(project: Project, *titles: str, **options: Any) -> list[Notification]:
    return [notify(project.pk, kind="escalated", title=title, **options) for title in titles]


def read(client: Client, body: dict[str, Any], **headers: str) -> Any:
    return client.post(f"{LIST}/read", body, content_type="application/json", headers=headers)


def test_notifications_are_listed_newest_first(project: Project, client: Client, ann: User) -> None:
    run_id = uuid4()
    one, two = told(project, "Escalated: ä", "two", text="Why", run_id=run_id)
    notifications.mark_read(project.pk, ann.pk, [one.pk])

    rows = client.get(LIST).json()["results"]

    assert rows == [
        {
            "id": str(each.pk),
            "kind": "escalated",
            "title": each.title,
            "text": "Why",
            "run_id": str(run_id),
            "created_at": each.created_at.strftime("%Y-%m-%dT%H:%M:%S.%fZ"),
            "read": each is one,
        }
        for each in (two, one)
    ]


def test_pages_link_in_both_directions(project: Project, client: Client) -> None:
    told(project, *"abcde")

    def titles(page: Any) -> list[str]:
        return [row["title"] for row in page["results"]]

    first = client.get(f"{LIST}?limit=2").json()
    second = client.get(first["next"]).json()
    third = client.get(second["next"]).json()
    assert [titles(page) for page in (first, second, third)] == [["e", "d"], ["c", "b"], ["a"]]
    assert third["next"] is None
    assert titles(client.get(third["previous"]).json()) == ["c", "b"]
    assert titles(client.get(client.get(third["previous"]).json()["previous"]).json()) == ["e", "d"]


def test_a_key_has_no_read_state(project: Project) -> None:
    [one] = told(project, "one")
    program = Client(headers=with_key(project, "read", "write"))

    assert [row["read"] for row in program.get(LIST).json()["results"]] == [None]
    answer = read(program, {"ids": [str(one.pk)]})
    assert (answer.status_code, answer.json()["code"]) == (403, "role_required")


def test_notifications_can_be_marked_as_read_by_id_and_up_to_one(project: Project, client: Client, ann: User) -> None:
    one, two, three = told(project, "one", "two", "three")
    theirs = told(make_project("beta"), "theirs")[0]

    assert read(client, {"ids": [str(one.pk), str(one.pk), str(theirs.pk)]}).json() == {"marked": 1}
    assert read(client, {"up_to": str(two.pk)}).json() == {"marked": 1}
    assert read(client, {"up_to": str(two.pk)}).json() == {"marked": 0}
    assert notifications.unread_count(project.pk, ann.pk) == 1
    assert not NotificationReceipt.objects.filter(notification__in=[theirs, three]).exists()


@pytest.mark.parametrize(
    "body",
    [{}, {"ids": ["x"]}, {"ids": [], "up_to": str(UUID(int=1))}, {"all": True}, {"ids": [str(UUID(int=1))] * 201}],
    ids=["nothing", "no id", "both", "unknown", "too many"],
)
def test_an_invalid_body_is_refused(body: dict[str, Any], project: Project, client: Client) -> None:
    assert read(client, body).status_code in (400, 422)


def test_the_number_of_queries_is_constant(project: Project, client: Client, django_assert_num_queries: Any) -> None:
    told(project, "one")
    with django_assert_num_queries(5):
        client.get(LIST)
    told(project, *(str(number) for number in range(60)))
    with django_assert_num_queries(5):
        client.get(LIST)
