"""The model of further data about external runs."""

from __future__ import annotations

from django.db import models

from runs.models.run import AgentRun


class ExternalRun(models.Model):
    """The state of the projection of an external run's events, and their sender."""

    run = models.OneToOneField(AgentRun, models.PROTECT, primary_key=True, related_name="external")
    #: The sequence number of the first event of the answer that is being streamed. Null between answers.
    answer_from_seq = models.BigIntegerField(null=True)
    #: The state of the streamed texts. Contains up to 32 KiB of each, unredacted: it is never displayed or exported.
    open_texts = models.JSONField(default=dict)
    #: The actor that sent the last events, as the audit log names it.
    sender = models.CharField(max_length=200, blank=True, default="")
    #: The time when a file with the run was last imported, by the database's clock. Null for runs that send events.
    imported_at = models.DateTimeField(null=True)
    #: The time of the last event of a runner that was detected as silent. Null while it sends events.
    silent_since = models.DateTimeField(null=True)
    #: The external ID of the parent of this run, or of the run that it was forked from, as long as the project does not
    #: have that run.
    origin_ref = models.TextField(blank=True, default="", db_default="")
    #: Whether `origin_ref` names the parent; otherwise, the run that it was forked from.
    origin_is_parent = models.BooleanField(default=False, db_default=False)
    #: The position of the last message that was copied from another session.
    copied_until = models.PositiveIntegerField(default=0, db_default=0)
    #: The last title that its program has set.
    given_title = models.CharField(max_length=200, blank=True, default="", db_default="")

    class Meta:
        db_table = "agent_run_external"
        indexes = [
            # runs.external.origins: the runs that wait for a run that is being created.
            models.Index(fields=["origin_ref"], name="external_run_origin", condition=~models.Q(origin_ref="")),
        ]

    def __str__(self) -> str:
        return str(self.run_id)
