"""What the simulation assumes: the settings of a site, and the costs of what its workers do, each with its source."""

from __future__ import annotations

from dataclasses import dataclass, field


@dataclass(frozen=True)
class SiteSettings:
    """Settings of the site, in seconds, with the defaults of docs/reference/settings.md."""

    lease_s: float = 20.0
    renew_s: float = 5.0
    sweep_s: float = 5.0
    slice_s: float = 3600.0
    concurrency: int = 8
    #: Whether a worker without a free slot leaves out the search for runs (runs/worker/worker.py).
    skips_search_when_full: bool = True
    #: Whether Redis tells a worker of each new run (runs/lifecycle/wake.py).
    has_hints: bool = False


@dataclass(frozen=True)
class Look:
    """A thread of the worker that asks the database again and again."""

    name: str
    period_s: float
    #: The wait is the period times a random number from here to 1.
    jitter_from: float
    #: Measured by `python -m bench sweep`. Periods of each worker, as before the clock sent these tasks once for all.
    statements: int


LOOKS = (
    Look("flows", 5.0, 0.8, 1),
    Look("uploads", 5.0, 0.8, 1),
    Look("traces", 1.0, 0.5, 1),
    Look("texts", 1.0, 0.5, 1),
    Look("alerts", 2.0, 0.5, 1),
    Look("alert rules", 10.0, 0.8, 1),
    Look("sinks and counts", 5.0, 0.5, 3),
    Look("projects", 10.0, 0.5, 1),
)


@dataclass(frozen=True)
class Costs:
    """Statements, and milliseconds of processor time in PostgreSQL."""

    #: `python -m bench sweep`: five of the six statements of a sweep use small partial indexes.
    upkeep_statements: int = 5
    #: The sixth is the search for runs. It reads every running run: 2.1 ms for six statements without any, and 11.4 ms
    #: more with 10,000 (`python -m bench sweep`).
    statement_ms: float = 0.35
    search_ms_per_run: float = 0.00114
    claim_statements: int = 6
    #: A worker renews its leases by one statement: 1.11 ms for one, 3.28 ms for ten, where a statement of a sweep took
    #: 1.11 ms (`python -m bench sweep` on a busy machine).
    renewal_ms_per_lease: float = 0.07
    #: A step whose answer comes at once (`python -m bench sweep`).
    step_statements: int = 2
    #: What an answer that streams for a second adds, mostly its partial texts: 27 of 64 transactions of six such steps
    #: appended events. Fitted to one busy worker (`python -m bench takeover`).
    streamed_statements: int = 7
    #: `python -m bench concurrent` on a busy machine, as the other measurements: 1.7 to 2.0 ms of PostgreSQL and 2.3 to
    #: 2.9 ms of the worker for each step.
    step_ms: float = 1.85
    worker_step_ms: float = 2.6
    #: A model call of the paced recording and its tool call: 16 busy runs made 16.0 steps per second.
    step_s: float = 1.0
    #: From the sweep that finds a run to its claim, on a busy machine: fitted to the claims of one worker.
    claim_s: float = 0.3
    #: Statements per second of an idle worker that no look explains: fitted to one idle worker.
    other_statements: float = 0.2
    #: From the start of a worker to its first sweep.
    start_s: float = 4.0
    #: From the commit of a new run to the look of the worker that gets the hint.
    hint_s: float = 0.01


@dataclass(frozen=True)
class Scenario:
    """A site: its workers, its database and the settings of both."""

    workers: int
    settings: SiteSettings = field(default_factory=SiteSettings)
    costs: Costs = field(default_factory=Costs)
    #: Processors of the database server.
    cores: int = 2
    seed: int = 1
