"""What a reader asks of the list of runs: filters, and a place in it; read from the address and written into links."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from urllib.parse import urlencode
from uuid import UUID

from django.db.models import F
from django.http import QueryDict
from django.utils import timezone

from agentops.projects.models import Project
from agentops.projects.names import SLUG_PATTERN
from runs.errors import RunRefusal
from runs.models import AgentRun
from runs.models.querysets import RunQuerySet
from runs.queries.durations import with_times
from runs.statuses import RunStatus
from timeline.redaction.redact import BARE
from timeline.shown import clean, legible

PAGE_SIZE = 50
MAX_TEXT = 200
#: Beyond it the exact number of new runs helps nobody.
MAX_NEW = 99
EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
# Seventeen digits of microseconds reach to the year 5138.
PLACE = re.compile(r"([0-9]{1,17})-([0-9a-f]{32})", re.ASCII)
UUID_HEX = re.compile(r"[0-9a-f]{8}(?:-[0-9a-f]{4}){3}-[0-9a-f]{12}", re.ASCII)


class InvalidListQuery(RunRefusal):
    """An address of the list that no link of ours has."""

    code = "invalid_query"
    status = 400


@dataclass(frozen=True)
class ListPlace:
    """A run's place in the order of the list: when it was created (to the microsecond), then its id."""

    created_at: datetime
    run_id: UUID

    @classmethod
    def of(cls, run: AgentRun) -> ListPlace:
        return cls(run.created_at, run.pk)

    @classmethod
    def now(cls) -> ListPlace:
        """Before everything that there is."""
        return cls(timezone.now(), UUID(int=2**128 - 1))

    @classmethod
    def parse(cls, text: str, name: str) -> ListPlace:
        found = PLACE.fullmatch(text)
        if found is None:
            raise InvalidListQuery(f"{name} is no place in the list of runs")
        return cls(EPOCH + timedelta(microseconds=int(found[1])), UUID(found[2]))

    def __str__(self) -> str:
        return f"{(self.created_at - EPOCH) // timedelta(microseconds=1)}-{self.run_id.hex}"


@dataclass(frozen=True)
class Filters:
    statuses: tuple[RunStatus, ...] = ()
    agent: str = ""
    text: str = ""
    source: str = ""
    root_only: bool = False

    @classmethod
    def parse(cls, asked: QueryDict) -> Filters:
        text = asked.get("q", "").strip()
        if len(text) > MAX_TEXT:
            raise InvalidListQuery(f"a text to look for has at most {MAX_TEXT} characters")
        agent, source = asked.get("agent", ""), asked.get("source", "")
        if agent and not re.match(SLUG_PATTERN, agent):
            raise InvalidListQuery(f"{agent[:64]!r} is no agent's name")
        if source and source not in AgentRun.Source.values:
            raise InvalidListQuery(f"{source[:64]!r} is no source: choose among {', '.join(AgentRun.Source.values)}")
        return cls(_statuses(asked.getlist("status")), agent, BARE.clean_text(text)[0], source, bool(asked.get("root")))

    def apply(self, runs: RunQuerySet) -> RunQuerySet:
        if self.statuses:
            runs = runs.filter(status__in=self.statuses)
        if self.agent:
            runs = runs.filter(agent__slug=self.agent)
        if self.text:
            # Django escapes what LIKE would read as a pattern.
            runs = runs.filter(title__icontains=self.text)
        if self.source:
            runs = runs.filter(source=self.source)
        if self.root_only:
            runs = runs.filter(parent_run=None, root_run=F("pk"))
        return runs

    def shows(self, title: str) -> bool:
        """Whether the text is in what a reader sees of a title that has it: an earlier version may have stored a secret
        that is masked now, and it must not be found letter by letter."""
        if not self.text or (cleaned := clean(title)) == legible(title):
            return True
        return self.text.casefold() in cleaned.casefold()

    def pairs(self) -> list[tuple[str, str]]:
        """As they stand in an address."""
        single = [("agent", self.agent), ("q", self.text), ("source", self.source), ("root", "1" * self.root_only)]
        return [*(("status", status.value) for status in self.statuses), *(pair for pair in single if pair[1])]

    def __bool__(self) -> bool:
        return self != Filters()


@dataclass(frozen=True)
class Page:
    """One page of the list, newest first."""

    runs: list[AgentRun]
    #: The queries of the links to its neighbours; none where there is no neighbour.
    older: str | None
    newer: str | None
    #: Runs after this place are news to the reader of the first page.
    since: ListPlace | None


@dataclass(frozen=True)
class ListQuery:
    filters: Filters
    before: ListPlace | None = None
    after: ListPlace | None = None

    @classmethod
    def parse(cls, asked: QueryDict) -> ListQuery:
        before, after = asked.get("before"), asked.get("after")
        if before and after:
            raise InvalidListQuery("a page lies before one place or after one, not both")
        return cls(
            Filters.parse(asked),
            before=ListPlace.parse(before, "before") if before else None,
            after=ListPlace.parse(after, "after") if after else None,
        )

    def address(self, **place: ListPlace | None) -> str:
        """The query of a link to the list with the same filters."""
        pairs = self.filters.pairs() + [(name, str(value)) for name, value in place.items() if value]
        return f"?{urlencode(pairs)}" if pairs else ""

    def page(self, project: Project) -> Page:
        """One more than a page is read: that tells whether there is a next one."""
        runs = with_times(self.filters.apply(AgentRun.objects.filter(project=project)).for_list()).newest_first()
        loaded = ListPlace.now()
        if self.after:
            found = self._found(
                lambda place: runs.newer_than(place.created_at, place.run_id).reverse() if place else runs, self.after
            )
            shown = found[:PAGE_SIZE][::-1]
            more_newer, more_older = len(found) > PAGE_SIZE, True
        else:
            found = self._found(
                lambda place: runs.older_than(place.created_at, place.run_id) if place else runs, self.before
            )
            shown = found[:PAGE_SIZE]
            more_newer, more_older = self.before is not None, len(found) > PAGE_SIZE
        first, last = (ListPlace.of(shown[0]), ListPlace.of(shown[-1])) if shown else (None, None)
        on_top = not self.before and not self.after
        return Page(
            shown,
            older=self.address(before=last) if more_older and last else None,
            newer=self.address(after=first) if more_newer and first else None,
            since=(first or loaded) if on_top else None,
        )

    def _found(self, beyond: Callable[[ListPlace | None], RunQuerySet], place: ListPlace | None) -> list[AgentRun]:
        """The runs beyond a place that a page shows, and one more."""
        found: list[AgentRun] = []
        while True:
            batch = list(beyond(place)[: PAGE_SIZE + 1])
            found += [run for run in batch if self.filters.shows(run.title)]
            if len(found) > PAGE_SIZE or len(batch) <= PAGE_SIZE:
                return found[: PAGE_SIZE + 1]
            place = ListPlace.of(batch[-1])

    def new_since(self, project: Project, since: ListPlace) -> int:
        """How many runs that pass the filters are newer; one more than MAX_NEW stands for all beyond."""
        runs = self.filters.apply(AgentRun.objects.filter(project=project))
        newer = runs.newer_than(since.created_at, since.run_id)
        if not self.filters.text:
            return newer[: MAX_NEW + 1].count()
        return sum(map(self.filters.shows, newer.values_list("title", flat=True)[: MAX_NEW + 1]))


def ids_of(text: str) -> list[UUID]:
    """The ids of the rows that a page wants to have again."""
    parts = text.split(",") if text else []
    if len(parts) > PAGE_SIZE or not all(UUID_HEX.fullmatch(part) for part in parts):
        raise InvalidListQuery(f"ids must be those of at most {PAGE_SIZE} runs, with commas between them")
    return [UUID(part) for part in parts]


def _statuses(given: Iterable[str]) -> tuple[RunStatus, ...]:
    """Each once, in the order of the enum."""
    chosen = {status for status in given if status}
    unknown = sorted(chosen - set(RunStatus))
    if unknown:
        raise InvalidListQuery(f"{unknown[0][:64]!r} is no status: choose among {', '.join(RunStatus)}")
    return tuple(status for status in RunStatus if status in chosen)
