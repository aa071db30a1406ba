"""The clock: a schedule in the database. Neither its entries nor database errors end it."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from datetime import timedelta
from typing import Any

import pytest
from django.conf import settings
from django.db import OperationalError, connection
from django.utils import timezone
from django_celery_beat.models import IntervalSchedule, PeriodicTask
from kombu import Connection

from agentops.celery import app
from agentops.site.bootstep import ClockThread
from agentops.site.scheduler import ClockEntry, SiteScheduler
from tests.support.engine import queued_messages, task_names
from tests.support.timing import eventually

pytestmark = [pytest.mark.django_db(transaction=True), pytest.mark.every_database]
SITE = set(settings.CELERY_BEAT_SCHEDULE)
UPKEEP = SITE - {"runs.sweep"}


@pytest.fixture(autouse=True)
def _empty_queue() -> None:
    queued_messages("upkeep")


def ticked() -> SiteScheduler:
    """Return a scheduler that has sent all due tasks."""
    scheduler = SiteScheduler(app)
    while scheduler.tick() == 0:
        pass
    return scheduler


def make_due() -> None:
    """Make all tasks due, as at the start of a site that was stopped for an hour."""
    PeriodicTask.objects.update(last_run_at=timezone.now() - timedelta(hours=1))


@contextmanager
def missing_table() -> Iterator[None]:
    rename("django_celery_beat_periodictask", "away")
    try:
        yield
    finally:
        rename("away", "django_celery_beat_periodictask")


def rename(table: str, name: str) -> None:
    # The scheduler closes the connection of this thread.
    with connection.cursor() as cursor:
        cursor.execute(f"ALTER TABLE {table} RENAME TO {name}")


def test_thread_writes_the_schedule_and_sends_due_tasks() -> None:
    ticked().close()
    make_due()
    clock = ClockThread(app)
    clock.start()
    sent: set[str] = set()

    def has_sent_all() -> bool:
        sent.update(task_names("upkeep"))
        return sent >= UPKEEP

    try:
        eventually(has_sent_all, why=lambda: f"only {sent} were sent")
    finally:
        clock.stop()
    assert set(PeriodicTask.objects.values_list("name", flat=True)) == SITE
    assert not PeriodicTask.objects.filter(total_run_count=0).exists()


class FailingOnce(SiteScheduler):
    """A scheduler that fails once, with an unexpected error."""

    has_failed = False

    def tick(self, *args: Any, **kwargs: Any) -> float:
        if not FailingOnce.has_failed:
            FailingOnce.has_failed = True
            raise LookupError("an error that is not the database's")
        return super().tick(*args, **kwargs)


def test_error_does_not_end_the_thread(monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture) -> None:
    ticked().close()
    make_due()
    monkeypatch.setitem(app.conf, "beat_scheduler", f"{__name__}:FailingOnce")
    clock = ClockThread(app)
    clock.start()
    try:
        eventually(lambda: "runs.index_texts" in task_names("upkeep"), why="the clock works on")
    finally:
        clock.stop()
    assert "the clock failed" in caplog.text


def test_messages_expire_and_have_a_priority() -> None:
    ticked().close()
    make_due()
    ticked().close()

    found = {message.headers["task"]: message for message in queued_messages("upkeep")}
    assert all(message.headers["expires"] for message in found.values())
    assert found["runs.settle_traces"].properties["priority"] == 0
    assert found["runs.send_mail" if settings.AGENTOPS_EMAIL else "runs.send_alerts"].properties["priority"] == 5


def test_two_clocks_write_one_schedule() -> None:
    clocks = [ClockThread(app) for _ in range(2)]
    for clock in clocks:
        clock.start()
    try:
        eventually(lambda: PeriodicTask.objects.count() == len(SITE), why="the schedule is written")
    finally:
        for clock in clocks:
            clock.stop()
    assert set(PeriodicTask.objects.values_list("name", flat=True)) == SITE


def test_restart_keeps_entries_and_restores_those_from_the_settings() -> None:
    ticked().close()
    every_hour = IntervalSchedule.objects.create(every=1, period=IntervalSchedule.HOURS)
    PeriodicTask.objects.create(name="mine", task="runs.sweep", interval=every_hour)
    PeriodicTask.objects.create(name="runs.of_an_old_version", task="runs.of_an_old_version", interval=every_hour)
    PeriodicTask.objects.filter(name="runs.index_texts").delete()
    PeriodicTask.objects.filter(name="runs.send_alerts").update(enabled=False, interval=every_hour)
    ticked().close()

    assert set(PeriodicTask.objects.values_list("name", flat=True)) == SITE | {"mine"}
    disabled = PeriodicTask.objects.get(name="runs.send_alerts")
    assert not disabled.enabled
    assert disabled.interval.every == settings.CELERY_BEAT_SCHEDULE["runs.send_alerts"]["schedule"]


def test_invalid_entries_do_not_end_the_clock() -> None:
    ticked().close()
    # Written with SQL, because forms refuse both.
    every_second = IntervalSchedule.objects.create(every=1, period=IntervalSchedule.SECONDS)
    PeriodicTask.objects.bulk_create(
        [
            PeriodicTask(name="no JSON", task="runs.sweep", interval=every_second, args="{"),
            PeriodicTask(name="no schedule", task="runs.sweep"),
            PeriodicTask(name="no task", task="nothing", interval=every_second, queue="upkeep"),
        ]
    )
    make_due()

    ticked().close()
    assert set(task_names("upkeep")) >= UPKEEP


def test_entry_deleted_during_a_tick_does_not_end_the_clock() -> None:
    ticked().close()
    make_due()
    scheduler = SiteScheduler(app)
    while scheduler.tick() == 0:
        PeriodicTask.objects.filter(name="runs.index_texts").delete()
    scheduler.close()

    assert PeriodicTask.objects.get(name="runs.settle_traces").total_run_count == 1


def test_database_failure_does_not_end_the_clock(caplog: pytest.LogCaptureFixture) -> None:
    scheduler = SiteScheduler(app)
    with missing_table():
        assert scheduler.tick() > 0
    assert "the clock cannot use the database" in caplog.text

    while scheduler.tick() == 0:
        pass
    assert set(PeriodicTask.objects.values_list("name", flat=True)) == SITE


def test_entry_that_only_another_clock_could_write_is_sent(monkeypatch: pytest.MonkeyPatch) -> None:
    """Otherwise this worker would have no sweep for five minutes."""
    write = ClockEntry.from_entry.__func__

    def fail_for_the_sweep(cls: type[ClockEntry], name: str, **options: Any) -> Any:
        entry = write(cls, name, **options)  # as another clock does at the same time
        if name == "runs.sweep":
            raise OperationalError("server closed the connection unexpectedly")
        return entry

    monkeypatch.setattr(ClockEntry, "from_entry", classmethod(fail_for_the_sweep))

    assert set(ticked().schedule) == SITE


def test_unreachable_broker_does_not_block_the_clock(caplog: pytest.LogCaptureFixture) -> None:
    """A tick that blocked would keep a worker from ending or forking. Due tasks are sent later."""
    ticked().close()
    make_due()
    scheduler = SiteScheduler(app)
    scheduler.connection = Connection("redis://127.0.0.1:1/0")
    while scheduler.tick() == 0:
        pass
    assert "the clock cannot reach the broker" in caplog.text
    # Only the clock sends this task.
    assert "runs.start_due" not in task_names("upkeep")

    del scheduler.connection
    while scheduler.tick() == 0:
        pass
    assert set(task_names("upkeep")) >= UPKEEP


def test_a_time_in_the_future_delays_no_task() -> None:
    """The time comes from a machine whose clock is ahead."""
    ticked().close()
    PeriodicTask.objects.update(last_run_at=timezone.now() + timedelta(hours=2))
    scheduler = ticked()
    waits = {entry.name: entry.is_due().next for entry in scheduler.schedule.values()}
    scheduler.close()

    assert all(wait <= settings.CELERY_BEAT_SCHEDULE[name]["schedule"] for name, wait in waits.items())
