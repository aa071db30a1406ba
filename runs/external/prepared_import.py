"""Imports a file in the caller's transaction. On SQLite, the rows of a large file are created before that.

SQLite has one writer at a time. Creating the rows of a large file takes seconds; copying them takes a fraction of that.
So they are created in a private database, and then copied into the database of the site. PostgreSQL locks only the runs
of the file, so there the rows are created in the caller's transaction.
"""

# ruff: noqa: S608 - names of tables and columns, never values
from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from tempfile import TemporaryDirectory
from urllib.parse import quote

from django.db import DEFAULT_DB_ALIAS, connection, connections, models, transaction

from agentops.accounts.models import Project, RedactionRule
from agentops.base.database.statements import after_commit
from runs.external import child_runs, origins
from runs.external.event_input import IncomingEvent
from runs.external.import_runs import ImportReport, Progress, end_linked, import_file
from runs.external.importers.base import ImportedRun, Importer, ImportFile, Item
from runs.models import (
    AgentRun,
    AgentRunMessage,
    AgentRunToolCall,
    ExternalRun,
    ReportedCall,
    RunCommand,
    RunError,
    TurnUsage,
)
from timeline.models import Event, Log

#: The tables that an import writes, with the column that holds the ID of the run.
_WRITTEN: dict[type[models.Model], str] = {
    Log: "id",
    AgentRun: "id",
    AgentRunMessage: "run_id",
    AgentRunToolCall: "run_id",
    RunCommand: "run_id",
    ExternalRun: "run_id",
    TurnUsage: "run_id",
    ReportedCall: "run_id",
    RunError: "run_id",
    Event: "log_id",
}
#: The written tables in which an import may also change existing rows.
_CHANGED = (Log, AgentRun, AgentRunToolCall, RunCommand, ExternalRun)
#: The tables that an import only reads. The private database has no other tables.
_READ: tuple[type[models.Model], ...] = (Project, RedactionRule)
#: New rows of numbered tables get higher numbers than this, and all rows from the site have lower ones.
_FIRST_NUMBER = 2**62
#: Tables with the site's runs and logs as they were when they were copied.
_BEFORE = {AgentRun: "runs_before", Log: "logs_before"}


class CallsOfOthers(Exception):
    """A run of the site that is not in the private database has reported the same model calls."""


class PrivateDatabase:
    """A database with the tables that an import uses, and the runs of the site that it continues."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._site = connections[DEFAULT_DB_ALIAS]
        self._announcements: list[Callable[[], object]] = []

    @contextmanager
    def in_use(self) -> Iterator[None]:
        """Send all queries of this thread to this database. What would follow the commit is deferred to `copy`."""
        private = self._site.copy()
        private.settings_dict["NAME"] = str(self._path)
        connections[DEFAULT_DB_ALIAS] = private
        try:
            self._create_tables()
            with transaction.atomic():
                yield
                # Other processes are notified when the rows are copied: before, they cannot see the rows.
                self._announcements = [hook[1] for hook in private.run_on_commit]
                private.run_on_commit = []
        finally:
            connections[DEFAULT_DB_ALIAS] = self._site
            private.close()

    def add_site_rows(self, project: Project, head: ImportedRun) -> None:
        """Copy the rows of a run, of its parent and of its origin from the site, as far as they exist there."""
        for reference in filter(None, (head.run_ref, head.parent_ref, head.forked_ref)):
            run = f"(SELECT id FROM site.{_table(AgentRun)} WHERE project_id = %s AND external_id = %s)"
            for model, key in _WRITTEN.items():
                rows = f"SELECT * FROM site.{_table(model)} WHERE {key} = {run}"
                for target in filter(None, (f"main.{_table(model)}", _BEFORE.get(model))):
                    _execute(f"INSERT OR IGNORE INTO {target} {rows}", project.pk.hex, reference)

    def check_calls(self, project: Project, event: IncomingEvent) -> None:
        """Raise `CallsOfOthers` if another run of the site has reported the model call of an event."""
        names = ", ".join(["%s"] * len(event.call_names))
        query = f"""SELECT 1 FROM site.{_table(ReportedCall)} c JOIN site.{_table(AgentRun)} r ON r.id = c.run_id
            WHERE c.project_id = %s AND c.name IN ({names}) AND COALESCE(r.external_id, '') <> %s LIMIT 1"""
        if _execute(query, project.pk.hex, *event.call_names, event.run_ref):
            raise CallsOfOthers

    @contextmanager
    def attached(self) -> Iterator[None]:
        """Attach this database to the site's connection. SQLite can do this only between transactions."""
        _execute("ATTACH %s AS prepared", str(self._path))
        try:
            yield
        finally:
            _execute("DETACH prepared")

    def copy(self) -> bool:
        """Copy the rows into the site, in the caller's transaction.

        Returns False, and copies nothing, if a run of the import has changed there.
        """
        if self._has_changed():
            return False
        for model, key in _WRITTEN.items():
            _copy(model, key)
        for announcement in self._announcements:
            after_commit(announcement)
        return True

    def _create_tables(self) -> None:
        """Create the tables that an import uses, and copy the rows that it only reads."""
        _execute("PRAGMA foreign_keys = OFF")
        # The file is deleted if the process dies.
        _execute("PRAGMA synchronous = OFF")
        _execute("ATTACH %s AS site", f"file:{quote(str(self._site.settings_dict['NAME']))}?mode=ro")
        for model in (*_WRITTEN, *_READ):
            definitions = "SELECT sql FROM site.sqlite_master WHERE tbl_name = %s AND type <> 'trigger' AND sql <> ''"
            for (definition,) in _execute(f"{definitions} ORDER BY type = 'index'", model._meta.db_table):
                _execute(definition)
            if _is_numbered(model):
                _execute("INSERT INTO sqlite_sequence (name, seq) VALUES (%s, %s)", model._meta.db_table, _FIRST_NUMBER)
        for model in _READ:
            _execute(f"INSERT INTO main.{_table(model)} SELECT * FROM site.{_table(model)}")
        for model, before in _BEFORE.items():
            _execute(f"CREATE TABLE {before} AS SELECT * FROM site.{_table(model)} WHERE FALSE")

    def _has_changed(self) -> bool:
        """Return whether the site has changed so that the rows cannot be copied: a run that the import continues was
        changed, or a run or a model call that it adds was added.
        """
        runs = _table(AgentRun)
        changes = [
            f"SELECT 1 FROM (SELECT * FROM prepared.{before} EXCEPT SELECT * FROM main.{_table(model)})"
            for model, before in _BEFORE.items()
        ]
        opened = f"""SELECT 1 FROM prepared.{runs} p JOIN main.{runs} m
            ON m.project_id = p.project_id AND m.external_id = p.external_id AND m.id <> p.id"""
        calls = _table(ReportedCall)
        reported = f"""SELECT 1 FROM prepared.{calls} p JOIN main.{calls} m
            ON m.project_id = p.project_id AND m.name = p.name AND m.call <> p.call"""
        return any(_execute(f"{query} LIMIT 1") for query in (*changes, opened, reported))


def _copy(model: type[models.Model], key: str) -> None:
    """Copy the new rows of a table, and the changed rows of continued runs."""
    table, pk, columns = _table(model), model._meta.pk.column, _columns(model)
    known = f"SELECT {pk} FROM main.{table} WHERE {key} IN (SELECT id FROM prepared.{_BEFORE[AgentRun]})"
    if model in _CHANGED:
        _execute(
            f"UPDATE main.{table} AS t SET ({columns}) ="
            f" (SELECT {columns} FROM prepared.{table} p WHERE p.{pk} = t.{pk}) WHERE {pk} IN ({known})"
        )
    is_new = f"{pk} > {_FIRST_NUMBER}" if _is_numbered(model) else f"{pk} NOT IN ({known})"
    _execute(
        f"INSERT INTO main.{table} ({columns}) SELECT {columns} FROM prepared.{table} WHERE {is_new} ORDER BY {pk}"
    )


def _columns(model: type[models.Model]) -> str:
    """Return the columns of a table, without a number that the database assigns."""
    skipped = model._meta.pk.column if _is_numbered(model) else ""
    return ", ".join(f'"{field.column}"' for field in model._meta.concrete_fields if field.column != skipped)


def _is_numbered(model: type[models.Model]) -> bool:
    return isinstance(model._meta.pk, models.AutoField)


def _table(model: type[models.Model]) -> str:
    return model._meta.db_table


def _execute(statement: str, *parameters: str | int) -> list[tuple[str]]:
    with connections[DEFAULT_DB_ALIAS].cursor() as cursor:
        cursor.execute(statement, parameters or None)
        return list(cursor.fetchall())


#: Minimum bytes of a file for which a private database is used. Smaller files take less than 0.1 s.
PREPARED_FROM = 128 * 1024


@contextmanager
def prepared(
    project: Project,
    file: ImportFile,
    importer: Importer,
    *,
    by: str,
    size: int = 0,
    progress: Progress = lambda report: None,
    watch: Callable[[], None] | None = None,
) -> Iterator[Callable[[], ImportReport]]:
    """Prepare the import of a file, and yield a function that stores it in the caller's transaction.

    Both raise `ImportRefused`. `size`: the expanded size of the file in bytes, if known. `progress` and `watch`: see
    `import_file`.
    """
    directly = partial(import_file, project, file, importer, by=by, progress=progress, watch=watch)
    if connection.vendor != "sqlite" or connection.in_atomic_block or max(file.stored.size, size) < PREPARED_FROM:
        yield directly
        return
    with TemporaryDirectory(prefix="agentops-import-") as folder:
        private = PrivateDatabase(Path(folder) / "import.sqlite3")
        try:
            with private.in_use():
                adding = _AddingSiteRows(importer, project, private)
                report = import_file(project, file, adding, by=by, progress=progress, watch=watch)
        except CallsOfOthers:
            yield directly  # because rows of other runs change, too
            return
        with private.attached():
            yield partial(_store, private, report, directly)


def _store(private: PrivateDatabase, report: ImportReport, directly: Callable[[], ImportReport]) -> ImportReport:
    if not private.copy():
        # This is rare: for example, a watcher stored new events of the same session.
        return directly()
    for run in report.runs:
        if run.pk in report.opened:
            # The private database did not have other runs of the session, and runs that named this run.
            report.links.adopted += child_runs.adopt_early_children(run)
            origins.link_opened(run)
    end_linked(report)
    return report


class _AddingSiteRows:
    """An importer that adds the site's rows of each run to a private database before the run is imported."""

    def __init__(self, importer: Importer, project: Project, private: PrivateDatabase) -> None:
        self.name, self.title, self.detect = importer.name, importer.title, importer.detect
        self._importer, self._project, self._private = importer, project, private

    def read(self, file: ImportFile) -> Iterator[Item]:
        """Yield the items of the importer. Raises `CallsOfOthers`."""
        for item in self._importer.read(file):
            if isinstance(item, ImportedRun):
                self._private.add_site_rows(self._project, item)
            elif item.call_names:
                self._private.check_calls(self._project, item)
            yield item
