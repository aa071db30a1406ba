"""The model of what is known of an external run besides its rows."""

from __future__ import annotations

from django.db import models

from runs.models.run import AgentRun


class ExternalRun(models.Model):
    """What the projection of an external run's events continues from, and who sends them."""

    run = models.OneToOneField(AgentRun, models.PROTECT, primary_key=True, related_name="external")
    #: The sequence number of the first event of the answer that is being received. Null between answers.
    answer_from_seq = models.BigIntegerField(null=True)
    #: What the texts that are being streamed continue from. Holds up to 32 KiB of each unredacted: no way out shows it.
    open_texts = models.JSONField(default=dict)
    #: The actor that sent the last events, as the audit log names it.
    sender = models.CharField(max_length=200, blank=True, default="")
    #: When a file was last imported that has the run, by the database's clock. Null for runs that send events.
    imported_at = models.DateTimeField(null=True)
    #: The time of the last event of a runner whose silence was noticed. Null while it sends events.
    silent_since = models.DateTimeField(null=True)
    #: The external ID of the run that this one is a child or a fork of, as long as the project does not have that run.
    origin_ref = models.TextField(blank=True, default="", db_default="")
    #: Whether `origin_ref` names its parent; otherwise, the run that it is a fork of.
    origin_is_parent = models.BooleanField(default=False, db_default=False)
    #: The position of the last message that was copied from another session.
    copied_until = models.PositiveIntegerField(default=0, db_default=0)
    #: The title that its program has given to it last.
    given_title = models.CharField(max_length=200, blank=True, default="", db_default="")

    class Meta:
        db_table = "agent_run_external"
        indexes = [
            # runs.external.origins: the runs that wait for one that is opened now.
            models.Index(fields=["origin_ref"], name="external_run_origin", condition=~models.Q(origin_ref="")),
        ]

    def __str__(self) -> str:
        return str(self.run_id)
