"""The model of AG-UI runs: requests of AG-UI clients."""

from __future__ import annotations

from django.db import models

from runs.models.agent import Agent
from runs.models.message import AgentRunMessage
from runs.models.run import AgentRun

#: Maximum length of the IDs that clients choose.
MAX_CLIENT_ID = 200


class AgUiRun(models.Model):
    """A request of an AG-UI client, and the run whose events answer it.

    A thread of a client is a chain of runs here. One run may answer several requests: each answer to its questions is a
    separate request.
    """

    agent = models.ForeignKey(Agent, models.CASCADE, related_name="ag_ui_runs", db_index=False)
    run = models.ForeignKey(AgentRun, models.PROTECT, related_name="ag_ui_runs")
    #: The client's IDs of the thread and of this request.
    thread_id = models.CharField(max_length=MAX_CLIENT_ID)
    client_run_id = models.CharField(max_length=MAX_CLIENT_ID)
    #: The sequence number in the run's log after which the events of this request begin.
    after_seq = models.BigIntegerField()
    #: The user message that the request added to the conversation, and the client's ID for it.
    message = models.ForeignKey(AgentRunMessage, models.PROTECT, null=True, related_name="+")
    client_message_id = models.CharField(max_length=MAX_CLIENT_ID, blank=True, default="")

    class Meta:
        db_table = "ag_ui_runs"
        constraints = [
            # Also used to find the newest request of a thread.
            models.UniqueConstraint(fields=["agent", "thread_id", "client_run_id"], name="ag_ui_run_once"),
        ]

    def __str__(self) -> str:
        return f"{self.thread_id}/{self.client_run_id}"
