"""A watched folder of sessions. May import the product."""

from __future__ import annotations

from pathlib import Path

from runs.external.watching.remote_sink import RemoteSink
from runs.external.watching.watch_sinks import LocalSink, WatchSink
from runs.external.watching.watcher import Watcher
from runs.models import AgentRun
from tests.support.accounts import with_key
from tests.support.factories import make_project
from tests.support.web.client_transport import ClientTransport


class Site:
    """A watched project, and its folder."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.project = make_project("watched")
        self.is_remote = False
        self.told: list[str] = []
        self.warned: list[str] = []
        self.restart()

    def restart(self) -> None:
        """Start with a new watcher, as a new process does."""
        sink: WatchSink = LocalSink(self.project, by="command:test")
        if self.is_remote:
            key = with_key(self.project, "ingest")["Authorization"].removeprefix("Bearer ")
            sink = RemoteSink("http://localhost", key, transport=ClientTransport())
        self.watcher = Watcher([self.folder], sink, ["host:test"], tell=self.told.append, warn=self.warned.append)

    def round(self) -> None:
        """Check all files, even before their next check is due."""
        self.watcher.scan_s = 0.0
        for file in self.watcher.files.values():
            file.not_before = 0.0
        self.watcher.round()

    def settle(self) -> None:
        """Store all files, and set their sessions to waiting, as after a long silence."""
        self.watcher.run_once()

    def runs(self) -> list[AgentRun]:
        return list(AgentRun.objects.filter(project=self.project).order_by("external_id"))
