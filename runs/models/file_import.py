"""The models of uploaded files that are imported in the background."""

from __future__ import annotations

from django.db import models
from django.db.models import Exists, F, OuterRef, Q, Subquery
from uuid_utils.compat import uuid7

from agentops.accounts.models import Project
from agentops.base.database_clock import Now, StampField


class ImportState(models.TextChoices):
    """The state of an import. All except `waiting` and `running` are final."""

    WAITING = "waiting"
    #: A worker has claimed it, and may have died since.
    RUNNING = "running"
    DONE = "done"
    #: The file cannot be imported.
    REFUSED = "refused"
    #: The import failed for a reason unrelated to the file.
    FAILED = "failed"
    #: A person or a program cancelled it before it was done.
    CANCELLED = "cancelled"


UNFINISHED = (ImportState.WAITING, ImportState.RUNNING)


class FileImportQuerySet(models.QuerySet["FileImport"]):
    """Queries on imports."""

    def unfinished(self) -> FileImportQuerySet:
        """Return the imports that are waiting or running."""
        return self.filter(state__in=UNFINISHED)

    def free(self) -> FileImportQuerySet:
        """Return the unfinished imports without a valid claim of a worker, by the database's clock."""
        return self.filter(Q(state=ImportState.WAITING) | Q(state=ImportState.RUNNING, taken_until__lt=Now()))

    def next_to_take(self) -> FileImport | None:
        """Return the import that a worker should claim next, by the database's clock, or None.

        Only the oldest unfinished import of each project is a candidate, so that the files of an upload are imported in
        order: a sub-agent's file needs the run that the file of its session creates. The project whose last import
        started the longest ago comes first, so that a backlog only delays its own project.
        """
        of_project = FileImport.objects.filter(project=OuterRef("project"))
        earlier = of_project.unfinished().filter(pk__lt=OuterRef("pk"))
        started = of_project.filter(started_at__isnull=False).order_by("-started_at").values("started_at")
        first = self.free().filter(~Exists(earlier)).annotate(last_turn=Subquery(started[:1]))
        return first.select_related("project").order_by(F("last_turn").asc(nulls_first=True), "pk").first()


class FileImport(models.Model):
    """An uploaded file and its import. Its content is stored in pieces, which are deleted when the import ends."""

    id = models.UUIDField(primary_key=True, default=uuid7, editable=False)
    project = models.ForeignKey(Project, models.CASCADE, related_name="imports", db_index=False)
    file_name = models.CharField(max_length=255)
    #: The size of the file in bytes.
    size = models.BigIntegerField()
    sha256 = models.BinaryField(max_length=32)
    #: The name of the importer: the requested one or, once it is known, the recognised one.
    format = models.CharField(max_length=64, blank=True)
    #: Whether the file is refused if a line is damaged.
    is_strict = models.BooleanField(default=False, db_default=False)
    state = models.CharField(max_length=9, choices=ImportState.choices, default=ImportState.WAITING)
    #: How often workers have claimed it. Also the fencing token of the current worker.
    attempts = models.PositiveSmallIntegerField(default=0)
    #: The end of the claim, by the database's clock. Null unless it is running.
    taken_until = models.DateTimeField(null=True)
    #: Number of events in the file. Null until the whole file was read.
    events = models.PositiveIntegerField(null=True)
    #: Number of these events that were new to the project. Null until the import is done.
    new_events = models.PositiveIntegerField(null=True)
    new_runs = models.PositiveIntegerField(default=0)
    continued_runs = models.PositiveIntegerField(default=0)
    unchanged_runs = models.PositiveIntegerField(default=0)
    #: The IDs of the first runs of the file, in the order of the file.
    run_ids = models.JSONField(default=list)
    #: The parts of the file that were not imported, as `runs.external.importers.stored_lines` stores them. Null: none
    #: so far.
    left_out = models.JSONField(null=True)
    #: Why it was refused or failed, with the file, and the line or the JSON pointer.
    error = models.TextField(blank=True)
    #: The machine-readable reason, such as `import_too_large`. Empty unless it was refused.
    error_code = models.CharField(max_length=32, blank=True, db_default="", default="")
    #: The actor that uploaded the file, in the form of the audit log.
    created_by = models.CharField(max_length=200)
    created_at = StampField(auto_now_add=True)
    started_at = models.DateTimeField(null=True)
    finished_at = models.DateTimeField(null=True)

    #: Number of events imported so far. Not a column: runs.external.import_states sets it.
    events_done: int = 0

    objects = FileImportQuerySet.as_manager()

    class Meta:
        db_table = "agent_run_imports"
        indexes = [
            # The imports of a project, newest first: IDs are ordered by time.
            models.Index(fields=["project", "-id"], name="imports_newest"),
            # next_to_take: the oldest unfinished import of each project.
            models.Index(fields=["project", "id"], name="imports_unfinished", condition=Q(state__in=UNFINISHED)),
            # next_to_take: when each project last started an import.
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
        """Delete the content of the file without loading it."""
        pieces = FileImportPiece.objects.filter(file_import=self)
        pieces._raw_delete(pieces.db)


class FileImportPiece(models.Model):
    """A piece of an uploaded file.

    Pieces are in the database, because the web server and the workers share it, and because content and import can then
    be stored, and deleted, in one transaction.
    """

    file_import = models.ForeignKey(FileImport, models.CASCADE, related_name="pieces", db_index=False)
    #: Counts from 0.
    number = models.PositiveIntegerField()
    content = models.BinaryField()

    class Meta:
        db_table = "agent_run_import_pieces"
        constraints = [models.UniqueConstraint(fields=["file_import", "number"], name="import_piece_once")]

    def __str__(self) -> str:
        return f"{self.file_import_id} {self.number}"
