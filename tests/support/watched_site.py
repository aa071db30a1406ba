"""A folder of sessions that is watched. May import the product."""

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
    """A project that is watched, and a folder."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.project = make_project("watched")
        self.is_remote = False
        self.told: list[str] = []
        self.warned: list[str] = []
        self.restart()

    def restart(self) -> None:
        """Forget everything, as a new process does."""
        sink: WatchSink = LocalSink(self.project, by="command:test")
        if self.is_remote:
            key = with_key(self.project, "ingest")["Authorization"].removeprefix("Bearer ")
            sink = RemoteSink("http://localhost", key, transport=ClientTransport())
        self.watcher = Watcher([self.folder], sink, ["host:test"], tell=self.told.append, warn=self.warned.append)

    def round(self) -> None:
        """Look at all files, whether it is time for that or not."""
        self.watcher.scan_s = 0.0
        for file in self.watcher.files.values():
            file.not_before = 0.0
        self.watcher.round()

    def settle(self) -> None:
        """Let the sessions wait, as after a long silence."""
        self.watcher.run_once()

    def runs(self) -> list[AgentRun]:
        return list(AgentRun.objects.filter(project=self.project).order_by("external_id"))
