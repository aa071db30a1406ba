"""`Idempotency-Key`: the stored response is repeated, a different request is refused, and there is only one effect."""

from __future__ import annotations

import json
import threading
from datetime import timedelta
from typing import Any

import pytest
from django.db import connections, transaction
from django.test import Client
from django.utils import timezone

from agentops.accounts.models import AuditEntry, IdempotencyKey, Role
from runs.actions import run_actions
from runs.api.requests import idempotency
from runs.lifecycle import inbox
from runs.models import AgentRun, RunCommand
from tests.support.api import Program, counts, pointers, program, refused
from tests.support.factories import make_agent, make_person, make_project, make_run, signed_in, with_key

KEY = "a-key-of-the-caller/1"


@pytest.fixture
def alpha(db: None) -> Program:
    project = make_project("alpha")
    make_agent(project, slug="player")
    return program(project)


NEW = {"agent_id": "player", "prompt": "Say hello", "labels": ["x"]}


def test_a_repeated_request_gets_the_stored_response(alpha: Program) -> None:
    first = alpha.post("", NEW, Idempotency_Key=KEY)
    before = counts()
    reordered = json.dumps(dict(reversed(NEW.items())), indent=2).encode()

    for body in (NEW, NEW, reordered):
        again = alpha.post("", body, Idempotency_Key=KEY)
        assert (again.status_code, again.content) == (201, first.content)
        assert again["Idempotent-Replayed"] == "true"
        assert (again["Location"], again["Content-Type"]) == (first["Location"], first["Content-Type"])
    assert "Idempotent-Replayed" not in first
    assert counts() == before
    assert alpha.post("", NEW, Idempotency_Key="another").json()["id"] != first.json()["id"]
    assert alpha.post("", NEW).json()["id"] != first.json()["id"]


def test_every_action_can_be_repeated(alpha: Program) -> None:
    """The first response is repeated, even if the run has changed since."""
    run = make_run(make_agent(alpha.project), "Go.")
    acts: list[tuple[str, Any, int]] = [
        (f"/{run.pk}/commands", {"type": "send", "message": "Hello"}, 202),
        (f"/{run.pk}/pause", None, 200),
        (f"/{run.pk}/resume", {"max_steps": 3}, 201),
        ("/resume", {"ids": [str(run.pk)]}, 200),
    ]
    first = [alpha.post(path, body, Idempotency_Key=path) for path, body, _ in acts]
    new = AgentRun.objects.get(resumed_from=run)
    stopped = alpha.post(f"/{new.pk}/stop", {}, Idempotency_Key="stop")
    before = counts()

    assert [answer.status_code for answer in first] == [status for _, _, status in acts]
    again = [alpha.post(path, body, Idempotency_Key=path) for path, body, _ in acts]
    assert [(one.status_code, one.content) for one in again] == [(one.status_code, one.content) for one in first]
    assert alpha.post(f"/{new.pk}/stop", {}, Idempotency_Key="stop").content == stopped.content
    assert counts() == before


def test_another_request_needs_another_key(alpha: Program) -> None:
    run = make_run(make_agent(alpha.project), "Go.")
    assert alpha.post(f"/{run.pk}/pause", Idempotency_Key=KEY).status_code == 200
    before = counts()

    for path, body in ((f"/{run.pk}/stop", None), (f"/{run.pk}/resume", None), ("", NEW)):
        answer = alpha.post(path, body, Idempotency_Key=KEY)
        assert refused(answer) == (422, "idempotency_mismatch")
        assert pointers(answer) == {"Idempotency-Key": "idempotency_mismatch"}
    assert counts() == before
    alpha.post("", NEW, Idempotency_Key="new")
    assert refused(alpha.post("", NEW | {"title": "x"}, Idempotency_Key="new")) == (422, "idempotency_mismatch")


@pytest.mark.parametrize("key", ["", " ", "x" * 256, "ä", "a\tb", "\x7f"], ids=range(6))
def test_an_invalid_key_is_refused(alpha: Program, key: str) -> None:
    before = counts()
    assert refused(alpha.post("", NEW, Idempotency_Key=key)) == (400, "invalid_idempotency_key")
    assert counts() == before
    for good in ("x" * 255, "two words", "~", '"8e03978e"'):
        assert alpha.post("", NEW, Idempotency_Key=good).status_code == 201


def test_callers_and_projects_do_not_share_keys(alpha: Program) -> None:
    """A caller neither gets nor is affected by the stored response of another caller."""
    beta = make_project("beta")
    make_agent(beta, slug="player")
    callers = [alpha, program(alpha.project), program(beta)]
    callers += [Program(alpha.project, signed_in(make_person(alpha.project, Role.OPERATOR))) for _ in range(2)]
    made = {caller.post("", NEW, Idempotency_Key=KEY).json()["id"] for caller in callers}

    assert len(made) == len(callers) == IdempotencyKey.objects.count()
    assert refused(Program(alpha.project, with_key(beta, "write")).post("", NEW, Idempotency_Key=KEY))[0] == 404


def test_a_caller_who_lost_the_permission_gets_no_stored_response(alpha: Program) -> None:
    person = make_person(alpha.project, Role.OPERATOR)
    caller = Program(alpha.project, signed_in(person))
    assert caller.post("", NEW, Idempotency_Key=KEY).status_code == 201
    person.memberships.update(role=Role.VIEWER)  # type: ignore[attr-defined]
    assert refused(caller.post("", NEW, Idempotency_Key=KEY)) == (403, "role_required")


def test_an_error_response_is_not_stored(alpha: Program) -> None:
    """The request had no effect, and a retry may succeed."""
    run = make_run(make_agent(alpha.project), "Go.")
    assert refused(alpha.post(f"/{run.pk}/resume", {}, Idempotency_Key=KEY)) == (409, "run_not_paused")
    assert not IdempotencyKey.objects.exists()
    inbox.pause(run.pk, by="test")
    assert alpha.post(f"/{run.pk}/resume", {}, Idempotency_Key=KEY).status_code == 201


def test_a_key_expires_after_a_day(alpha: Program) -> None:
    first = alpha.post("", NEW, Idempotency_Key=KEY)
    hours = {name: timezone.now() - timedelta(hours=name) for name in (23, 25)}
    IdempotencyKey.objects.update(created_at=hours[23])
    assert alpha.post("", NEW, Idempotency_Key=KEY).content == first.content
    IdempotencyKey.objects.update(created_at=hours[25])
    assert alpha.post("", NEW, Idempotency_Key=KEY).content != first.content
    assert IdempotencyKey.objects.count() == 1

    kept = IdempotencyKey.objects.get()
    fields = {"project": alpha.project, "caller": "key:x", "asked": b"x", "status": 200, "body": "{}"}
    IdempotencyKey.objects.bulk_create(
        IdempotencyKey(key=str(number), created_at=hours[25], **fields) for number in range(10)
    )
    alpha.post("", NEW, Idempotency_Key="one-more")
    assert IdempotencyKey.objects.count() == 2 + 10 - idempotency.EXPIRED_PER_KEY
    assert [
        idempotency.delete_expired_keys(5),
        idempotency.delete_expired_keys(),
        idempotency.delete_expired_keys(),
    ] == [5, 3, 0]
    assert set(IdempotencyKey.objects.values_list("key", flat=True)) == {kept.key, "one-more"}


# --- Concurrent and interrupted requests ----------------------------------------------------------------------------


@pytest.mark.django_db(transaction=True)
def test_concurrent_requests_have_one_effect(alpha: Program) -> None:
    """One request succeeds; the others get 409 or its response."""
    gate = threading.Barrier(16)
    answers: list[Any] = []

    def ask() -> None:
        try:
            caller = Program(alpha.project, alpha.headers, Client())
            gate.wait(60)
            answers.append(caller.post("", NEW, Idempotency_Key=KEY))
        finally:
            connections.close_all()

    threads = [threading.Thread(target=ask) for _ in range(16)]
    for each in threads:
        each.start()
    for each in threads:
        each.join(60)

    assert len(answers) == 16
    assert AgentRun.objects.count() == IdempotencyKey.objects.count() == 1
    made = [answer for answer in answers if answer.status_code == 201]
    waiting = [answer for answer in answers if answer.status_code != 201]
    assert len({answer.content for answer in made}) == 1
    assert sum("Idempotent-Replayed" not in answer for answer in made) == 1
    for answer in waiting:
        assert refused(answer) == (409, "in_progress")
        assert answer["Retry-After"] == "1"


@pytest.mark.django_db(transaction=True)
def test_a_second_request_during_the_first_is_refused(alpha: Program, monkeypatch: pytest.MonkeyPatch) -> None:
    seen: list[tuple[int, str]] = []
    create = run_actions.create

    def slow(*args: Any, **options: Any) -> AgentRun:
        run = create(*args, **options)
        thread = threading.Thread(target=meanwhile)
        thread.start()
        thread.join(60)
        return run

    def meanwhile() -> None:
        try:
            seen.append(refused(Program(alpha.project, alpha.headers).post("", NEW, Idempotency_Key=KEY)))
        finally:
            connections.close_all()

    monkeypatch.setattr(run_actions, "create", slow)
    assert alpha.post("", NEW, Idempotency_Key=KEY).status_code == 201
    assert set(seen) == {(409, "in_progress")}
    assert AgentRun.objects.count() == 1


class Killed(BaseException):
    """Simulates the end of the process."""


@pytest.mark.django_db(transaction=True)
@pytest.mark.parametrize("when", ["before the key", "after the key", "after the commit"])
def test_a_crash_leaves_the_effect_and_the_key_or_neither(
    alpha: Program, monkeypatch: pytest.MonkeyPatch, when: str
) -> None:
    """Effect and response are stored together, so a retry neither repeats the effect nor lacks a response."""
    forget, atomic = idempotency.delete_expired_keys, transaction.atomic
    run = make_run(make_agent(alpha.project), "Go.")

    def die(*_: Any, **__: Any) -> int:
        raise Killed

    with monkeypatch.context() as patched:
        if when == "before the key":
            patched.setattr(IdempotencyKey.objects, "update_or_create", die)
        elif when == "after the key":
            patched.setattr(idempotency, "delete_expired_keys", die)
        else:
            patched.setattr(idempotency, "delete_expired_keys", lambda *_: transaction.on_commit(die) or 0)
        with pytest.raises(Killed):
            alpha.post(f"/{run.pk}/stop", {}, Idempotency_Key=KEY)
    assert (idempotency.delete_expired_keys, transaction.atomic) == (forget, atomic)

    done = when == "after the commit"
    assert (AgentRun.objects.get(pk=run.pk).status == "stopped") is done
    assert IdempotencyKey.objects.exists() is RunCommand.objects.exists() is done
    again = alpha.post(f"/{run.pk}/stop", {}, Idempotency_Key=KEY)
    assert (again.status_code, again.get("Idempotent-Replayed")) == (200, "true" if done else None)
    assert again.json()["status"] == "stopped"
    assert RunCommand.objects.filter(run=run).count() == AuditEntry.objects.filter(action="run.stopped").count() == 1
