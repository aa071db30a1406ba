"""One task under each system: its program is killed in a tool, started again, killed while it waits, and approved.

Everything listens on the loopback interface, and every process is ended by its own ID.
"""

from __future__ import annotations

import json
import os
import subprocess
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from bench.compare.facts import Facts
from bench.compare.pages import Login, actions
from bench.compare.programs import task
from bench.processes import Program, running

PROGRAMS = Path(task.__file__).parent
STEP_S = 150
#: Seconds that a system has to continue without help.
CONTINUE_S = 150
COMMAND_S = 60
PAUSE_S = 0.2
State = dict[str, Any]


class NotObserved(Exception):
    """The system did not come to the next part of the task. The message fits a cell of the table."""


@dataclass(frozen=True)
class Setting:
    """A system that is set up: how its program is started and asked."""

    #: The command of the program that executes the task.
    serve: Sequence[str | Path]
    #: The command of the other commands; the name of one is appended.
    client: Sequence[str | Path]
    environment: Mapping[str, str]
    #: The port on which the program answers; 0 if it has none.
    port: int = 0
    #: Whether the program is also the server, which answers nothing while it is down.
    is_server: bool = False
    #: The address of the run's page, by the state; None if the system has no page on this machine.
    page: Callable[[State], str] | None = None
    login: Login | None = None
    #: Seconds between the effect of the interrupted call and the kill.
    killed_after_s: int = 0


@dataclass(frozen=True)
class Manners:
    """How to read the state of a system, and how to continue its run."""

    #: Whether it waits for a person who decides about the interrupted call, by the state.
    asks: Callable[[State], bool] = lambda state: False
    #: Whether it waits for the approval, by the state.
    waits: Callable[[State], bool] = lambda state: True
    #: Its state in the words of the table.
    says: Callable[[State], str] = json.dumps
    #: What continues the run if no person has to.
    continues: str = "the start of the program"
    #: The command that continues the run if starting the program does not, and a description of it.
    rescue: str = ""
    rescue_title: str = ""
    #: Whether the state shows that the rescue is possible.
    needs_rescue: Callable[[State], bool] = lambda state: True


@dataclass
class Stage:
    """The program of a system, its ledger, and the files of both."""

    folder: Path
    setting: Setting
    #: A factor for all time limits.
    patience: float = 1
    program: Program | None = None
    starts: int = 0
    pictures: int = 0
    _stack: ExitStack = field(default_factory=ExitStack)

    @property
    def ledger(self) -> Path:
        return self.folder / "ledger.jsonl"

    def start(self, *, kill: bool = False) -> None:
        """Start the program. `kill`: the third tool ends it."""
        self.starts += 1
        environment = self._environment() | ({task.KILL: str(self.setting.killed_after_s)} if kill else {})
        output = self.folder / f"program-{self.starts}.log"
        started = running(
            self.setting.serve, environment, output, port=self.setting.port, start_s=STEP_S * self.patience
        )
        self.program = self._stack.enter_context(started)

    def crash(self) -> None:
        assert self.program is not None
        self.program.crash()

    def ask(self, command: str) -> State:
        """Run a command of the client, and return the state that it prints. Raises `NotObserved` if it fails."""
        environment = self._environment()
        done = subprocess.run(
            [*self.setting.client, command],
            env=environment,
            capture_output=True,
            text=True,
            timeout=COMMAND_S * self.patience,
            check=False,
        )
        if done.returncode:
            raise NotObserved(f"{command}: {(done.stderr.strip().splitlines() or ['failed'])[-1][:160]}")
        state: State = json.loads(done.stdout.strip().splitlines()[-1])
        return state

    def begin(self) -> None:
        """Start the run, as soon as the program has made it possible."""
        end = time.monotonic() + STEP_S * self.patience
        while True:
            try:
                self.ask("start")
            except NotObserved:
                if self.lines():
                    return
                if time.monotonic() > end or not self.program or not self.program.alive():
                    raise
                time.sleep(PAUSE_S)
            else:
                return

    def actions(self, state: State) -> list[str] | None:
        """Return the names of the actions on the run's page, or None if it has no page on this machine."""
        if self.setting.page is None:
            return None
        self.pictures += 1
        picture = self.folder / f"page-{self.pictures}.png"
        return actions(self.setting.page(state), picture, self.setting.login)

    def lines(self) -> list[dict[str, Any]]:
        if not self.ledger.exists():
            return []
        return [json.loads(line) for line in self.ledger.read_text(encoding="utf-8").splitlines()]

    def reaches(self, what: str) -> None:
        """Wait until the ledger has a call."""
        self.until(lambda: any(line["what"] == what for line in self.lines()), f"{what} was not called")

    def until(self, condition: Callable[[], bool], otherwise: str, within_s: float = STEP_S) -> None:
        within_s *= self.patience
        end = time.monotonic() + within_s
        while not condition():
            if time.monotonic() > end:
                raise NotObserved(f"{otherwise} within {within_s:.0f} s")
            time.sleep(PAUSE_S)

    def state_until(self, condition: Callable[[State], bool], otherwise: str, within_s: float = STEP_S) -> State:
        """Ask for the state until it fulfils a condition, and return it."""
        within_s *= self.patience
        end = time.monotonic() + within_s
        seen = ""
        while time.monotonic() < end:
            try:
                state = self.ask("state")
            except NotObserved as error:  # A server that has just been started.
                seen = str(error)
            else:
                if condition(state):
                    return state
                seen = json.dumps(state)
            time.sleep(PAUSE_S)
        raise NotObserved(f"{otherwise} within {within_s:.0f} s: {seen[:200]}")

    def close(self) -> None:
        self._stack.close()

    def _environment(self) -> dict[str, str]:
        return {"PYTHONPATH": str(PROGRAMS), **self.setting.environment, task.LEDGER: str(self.ledger)}


@contextmanager
def staged(folder: Path, setting: Setting, patience: float) -> Iterator[Stage]:
    stage = Stage(folder, setting, patience)
    try:
        yield stage
    finally:
        stage.close()


def observe(stage: Stage, manners: Manners) -> Facts:
    """Play the task, and return the observations."""
    stage.start(kill=True)
    stage.begin()
    stage.reaches(task.KILLED)
    stage.until(lambda: stage.program is not None and not stage.program.alive(), "the program was not killed", 60)
    before = len(stage.lines())
    stage.crash()  # Its children, if any is left.
    shown = "" if stage.setting.is_server else manners.says(stage.ask("state"))
    started_at = time.time()
    stage.start()
    stop = _continued(stage, manners, before, shown)
    stage.reaches("model_2")
    continued_at = stop.asked_at or stage.lines()[before]["at"]
    waiting = stage.state_until(manners.waits, "it does not wait for the approval")
    page = stage.actions(waiting)
    stage.crash()
    if not stage.setting.is_server:
        # No process executes the run now. The approval is stored until one does.
        stage.ask("approve")
        stage.start()
    else:
        stage.start()
        stage.state_until(manners.waits, "the wait was lost with the process")
        stage.ask("approve")
    stage.reaches(task.PUBLISH)
    return Facts.read(
        stage.lines(),
        interrupted=stop.shown,
        continued_by=manners.rescue_title if stop.rescued else manners.continues,
        rescued=stop.rescued,
        continued_s=continued_at - started_at,
        asked=stop.rescued and manners.rescue == "resolve",
        interrupted_page=stop.page,
        waiting=manners.says(waiting),
        waiting_page=page,
        kept_without_process=not stage.setting.is_server,
    )


@dataclass(frozen=True)
class Stop:
    """The observations between the kill and the next call."""

    shown: str
    #: Whether a person had to do something.
    rescued: bool
    #: The time from which on a person could do it.
    asked_at: float = 0
    page: list[str] | None = None


def _continued(stage: Stage, manners: Manners, before: int, shown: str) -> Stop:
    """Wait until the run continues, with the help of a person if it needs one. `shown`: before the start."""
    end = time.monotonic() + CONTINUE_S * stage.patience
    while time.monotonic() < end and len(stage.lines()) == before:
        state = stage.ask("state")
        if len(stage.lines()) == before:
            shown = manners.says(state)
            if manners.rescue and (manners.asks(state) or manners.needs_rescue(state)):
                asked_at, page = time.time(), stage.actions(state)
                stage.ask(manners.rescue)
                return Stop(shown, rescued=True, asked_at=asked_at, page=page)
        time.sleep(PAUSE_S)
    return Stop(shown, rescued=False)


def command(python: Path, program: str, *arguments: str) -> list[str | Path]:
    return [python, PROGRAMS / program, *arguments]


def plain_environment(**more: str) -> dict[str, str]:
    """Return an environment without variables that would change a system, and with telemetry switched off."""
    kept = {name: os.environ[name] for name in ("PATH", "LANG", "HOME", "SSL_CERT_FILE") if name in os.environ}
    return {**kept, "DO_NOT_TRACK": "1", "PYTHONUNBUFFERED": "1", **more}
