"""The models of uploaded files that are imported in the background."""

from __future__ import annotations

from django.db import models
from django.db.models import Exists, F, OuterRef, Q, Subquery
from uuid_utils.compat import uuid7

from agentops.accounts.models import Project
from agentops.base.database_clock import Now, StampField


class ImportState(models.TextChoices):
    """The state of an import. The last four are final."""

    WAITING = "waiting"
    #: A worker has it, or had it when it died.
    RUNNING = "running"
    DONE = "done"
    #: The file cannot be imported.
    REFUSED = "refused"
    #: The import did not finish for a reason that is not in the file.
    FAILED = "failed"
    #: A person or a program has cancelled it before it was done.
    CANCELLED = "cancelled"


UNFINISHED = (ImportState.WAITING, ImportState.RUNNING)


class FileImportQuerySet(models.QuerySet["FileImport"]):
    """Queries on imports."""

    def unfinished(self) -> FileImportQuerySet:
        """Return the imports that are waiting or running."""
        return self.filter(state__in=UNFINISHED)

    def free(self) -> FileImportQuerySet:
        """Return the imports that no worker has, by the database's clock."""
        return self.filter(Q(state=ImportState.WAITING) | Q(state=ImportState.RUNNING, taken_until__lt=Now()))

    def next_to_take(self) -> FileImport | None:
        """Return the import that a worker may take, by the database's clock; None if there is none.

        Of each project only the oldest unfinished one, so that the files of an upload are imported in their order: a
        sub-agent's file finds the run that its session's file has opened. The projects take turns: the one comes
        first whose last import was started the longest ago, so that a backlog holds up its own project only.
        """
        of_project = FileImport.objects.filter(project=OuterRef("project"))
        earlier = of_project.unfinished().filter(pk__lt=OuterRef("pk"))
        started = of_project.filter(started_at__isnull=False).order_by("-started_at").values("started_at")
        first = self.free().filter(~Exists(earlier)).annotate(last_turn=Subquery(started[:1]))
        return first.select_related("project").order_by(F("last_turn").asc(nulls_first=True), "pk").first()


class FileImport(models.Model):
    """An uploaded file and its import. Its content is in pieces, which are deleted when the import ends."""

    id = models.UUIDField(primary_key=True, default=uuid7, editable=False)
    project = models.ForeignKey(Project, models.CASCADE, related_name="imports", db_index=False)
    file_name = models.CharField(max_length=255)
    #: In bytes.
    size = models.BigIntegerField()
    sha256 = models.BinaryField(max_length=32)
    #: The name of the importer: as requested, then as recognised. Empty until it is known.
    format = models.CharField(max_length=64, blank=True)
    #: Whether a damaged line makes it refused.
    is_strict = models.BooleanField(default=False, db_default=False)
    state = models.CharField(max_length=9, choices=ImportState.choices, default=ImportState.WAITING)
    #: How often a worker has taken it; the fencing token of that worker.
    attempts = models.PositiveSmallIntegerField(default=0)
    #: When another worker may take it, by the database's clock. Null unless it is running.
    taken_until = models.DateTimeField(null=True)
    #: Events of the file. Null until it was read completely.
    events = models.PositiveIntegerField(null=True)
    #: Of these events, those that the project did not have. Null until the import is done.
    new_events = models.PositiveIntegerField(null=True)
    new_runs = models.PositiveIntegerField(default=0)
    continued_runs = models.PositiveIntegerField(default=0)
    unchanged_runs = models.PositiveIntegerField(default=0)
    #: IDs of the first runs of the file, in its order.
    run_ids = models.JSONField(default=list)
    #: What of the file was not imported, as `runs.external.importers.reading.left_out` dumps it. Null: nothing, so far.
    left_out = models.JSONField(null=True)
    #: Why it was refused or failed: names the file, and the line or the JSON pointer.
    error = models.TextField(blank=True)
    #: The reason for programs, such as `import_too_large`. Empty unless it was refused.
    error_code = models.CharField(max_length=32, blank=True, db_default="", default="")
    #: The actor that uploaded the file, as the audit log names it.
    created_by = models.CharField(max_length=200)
    created_at = StampField(auto_now_add=True)
    started_at = models.DateTimeField(null=True)
    finished_at = models.DateTimeField(null=True)

    #: Events that are imported so far, as runs.external.uploads.import_progress has set it.
    events_done: int = 0

    objects = FileImportQuerySet.as_manager()

    class Meta:
        db_table = "agent_run_imports"
        indexes = [
            # The imports of a project, newest first: IDs are ordered by time.
            models.Index(fields=["project", "-id"], name="imports_newest"),
            # next_to_take.
            models.Index(fields=["project", "id"], name="imports_unfinished", condition=Q(state__in=UNFINISHED)),
            # next_to_take: the last turn of a project.
            models.Index(fields=["project", "-started_at"], name="imports_turns"),
            # old_records.delete_batch: oldest first.
            models.Index(fields=["created_at"], name="imports_oldest"),
        ]
        constraints = [
            models.CheckConstraint(condition=Q(state__in=ImportState.values), name="import_state_known"),
        ]

    def __str__(self) -> str:
        return self.file_name

    @property
    def is_finished(self) -> bool:
        return self.state not in UNFINISHED

    @property
    def run_count(self) -> int:
        return self.new_runs + self.continued_runs + self.unchanged_runs

    def delete_content(self) -> None:
        """Delete the content of the file, without loading it."""
        pieces = FileImportPiece.objects.filter(file_import=self)
        pieces._raw_delete(pieces.db)


class FileImportPiece(models.Model):
    """A part of an uploaded file.

    In the database, which the web server and the workers share wherever they run; so the content and its import are
    stored, and deleted, in one transaction each.
    """

    file_import = models.ForeignKey(FileImport, models.CASCADE, related_name="pieces", db_index=False)
    #: From 0.
    number = models.PositiveIntegerField()
    content = models.BinaryField()

    class Meta:
        db_table = "agent_run_import_pieces"
        constraints = [models.UniqueConstraint(fields=["file_import", "number"], name="import_piece_once")]

    def __str__(self) -> str:
        return f"{self.file_import_id} {self.number}"
