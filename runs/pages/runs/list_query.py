"""The query of the run list: filters and page position, parsed from the URL and written into links."""

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
from runs.pages.runs.listed_run import ListedRun, listed_runs, read
from runs.statuses import RunStatus
from timeline.display import clean, make_legible
from timeline.redaction.redact import BARE

PAGE_SIZE = 50
MAX_TEXT = 200
#: Maximum count of new runs; more are displayed as "99+".
MAX_NEW = 99
EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
# 17 digits of microseconds: until the year 5138.
POSITION = re.compile(r"([0-9]{1,17})-([0-9a-f]{32})", re.ASCII)
UUID_HEX = re.compile(r"[0-9a-f]{8}(?:-[0-9a-f]{4}){3}-[0-9a-f]{12}", re.ASCII)


class InvalidListQuery(RunRefusal):
    """A URL of the run list with an invalid query parameter."""

    code = "invalid_query"
    status = 400


@dataclass(frozen=True)
class ListPosition:
    """A position in the list: creation time in microseconds, then run ID."""

    created_at: datetime
    run_id: UUID

    @classmethod
    def of(cls, run: ListedRun) -> ListPosition:
        """Return the position of `run`."""
        return cls(run.created_at, run.pk)

    @classmethod
    def now(cls) -> ListPosition:
        """Return the position before all existing runs."""
        return cls(timezone.now(), UUID(int=2**128 - 1))

    @classmethod
    def parse(cls, text: str, name: str) -> ListPosition:
        """Return the position in the query parameter `name`. Raise InvalidListQuery for any other text."""
        match = POSITION.fullmatch(text)
        if match is None:
            raise InvalidListQuery(f"{name} is not a position in the list: {text[:64]!r}")
        return cls(EPOCH + timedelta(microseconds=int(match[1])), UUID(match[2]))

    def __str__(self) -> str:
        return f"{(self.created_at - EPOCH) // timedelta(microseconds=1)}-{self.run_id.hex}"


@dataclass(frozen=True)
class Filters:
    """The filters of the list."""

    statuses: tuple[RunStatus, ...] = ()
    agent: str = ""
    text: str = ""
    source: str = ""
    root_only: bool = False

    @classmethod
    def parse(cls, query: QueryDict) -> Filters:
        """Return the filters of a query string. Raise InvalidListQuery for invalid values."""
        text = query.get("q", "").strip()
        if len(text) > MAX_TEXT:
            raise InvalidListQuery(f"q can have at most {MAX_TEXT} characters, not {len(text)}")
        agent, source = query.get("agent", ""), query.get("source", "")
        if agent and not re.match(SLUG_PATTERN, agent):
            raise InvalidListQuery(f"{agent[:64]!r} is not a valid agent name")
        if source and source not in AgentRun.Source.values:
            sources = ", ".join(AgentRun.Source.values)
            raise InvalidListQuery(f"source must be one of {sources}, not {source[:64]!r}")
        return cls(_statuses(query.getlist("status")), agent, BARE.clean_text(text)[0], source, bool(query.get("root")))

    def apply(self, runs: RunQuerySet) -> RunQuerySet:
        """Return the runs that match."""
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

    def matches_title(self, title: str) -> bool:
        """Return whether the text is in the redacted title. A stored title may contain a secret, which must not be
        searchable.
        """
        if not self.text or (cleaned := clean(title)) == make_legible(title):
            return True
        return self.text.casefold() in cleaned.casefold()

    def pairs(self) -> list[tuple[str, str]]:
        """Return the filters as query parameters."""
        single = [("agent", self.agent), ("q", self.text), ("source", self.source), ("root", "1" * self.root_only)]
        return [*(("status", status.value) for status in self.statuses), *(pair for pair in single if pair[1])]

    def __bool__(self) -> bool:
        return self != Filters()


@dataclass(frozen=True)
class Page:
    """A page of the list, newest runs first."""

    runs: list[ListedRun]
    #: Query strings of the adjacent pages; None if there is none.
    older: str | None
    newer: str | None
    #: On the first page: runs newer than this position are new to the user.
    since: ListPosition | None


@dataclass(frozen=True)
class ListQuery:
    """The filters and the page position of a request: before or after a run, or the first page."""

    filters: Filters
    before: ListPosition | None = None
    after: ListPosition | None = None

    @classmethod
    def parse(cls, query: QueryDict) -> ListQuery:
        """Return the list query of a query string. Raise InvalidListQuery for invalid values."""
        before, after = query.get("before"), query.get("after")
        if before and after:
            raise InvalidListQuery("use either before or after, not both")
        return cls(
            Filters.parse(query),
            before=ListPosition.parse(before, "before") if before else None,
            after=ListPosition.parse(after, "after") if after else None,
        )

    def query_string(self, **position: ListPosition | None) -> str:
        """Return the query string of a link to the list with the same filters."""
        pairs = self.filters.pairs() + [(name, str(value)) for name, value in position.items() if value]
        return f"?{urlencode(pairs)}" if pairs else ""

    def page(self, project: Project) -> Page:
        """Return a page of the project's runs. Reads one more run than a page has, to know whether there is another."""
        runs = self.filters.apply(listed_runs().filter(project=project))
        now = ListPosition.now()
        if self.after:
            matching = self._matching(
                lambda position: runs.newer_than(position.created_at, position.run_id).reverse() if position else runs,
                self.after,
            )
            page = matching[:PAGE_SIZE][::-1]
            more_newer, more_older = len(matching) > PAGE_SIZE, True
        else:
            matching = self._matching(
                lambda position: runs.older_than(position.created_at, position.run_id) if position else runs,
                self.before,
            )
            page = matching[:PAGE_SIZE]
            more_newer, more_older = self.before is not None, len(matching) > PAGE_SIZE
        first, last = (ListPosition.of(page[0]), ListPosition.of(page[-1])) if page else (None, None)
        is_first_page = not self.before and not self.after
        return Page(
            page,
            older=self.query_string(before=last) if more_older and last else None,
            newer=self.query_string(after=first) if more_newer and first else None,
            since=(first or now) if is_first_page else None,
        )

    def _matching(
        self, beyond: Callable[[ListPosition | None], RunQuerySet], position: ListPosition | None
    ) -> list[ListedRun]:
        """Return the runs beyond a position that match: at most PAGE_SIZE + 1."""
        matching: list[ListedRun] = []
        while True:
            batch = read(beyond(position)[: PAGE_SIZE + 1])
            matching += [run for run in batch if self.filters.matches_title(run.title)]
            if len(matching) > PAGE_SIZE or len(batch) <= PAGE_SIZE:
                return matching[: PAGE_SIZE + 1]
            position = ListPosition.of(batch[-1])

    def new_since(self, project: Project, since: ListPosition) -> int:
        """Return the number of matching runs newer than `since`, at most MAX_NEW + 1."""
        runs = self.filters.apply(AgentRun.objects.filter(project=project))
        newer = runs.newer_than(since.created_at, since.run_id)
        if not self.filters.text:
            return newer[: MAX_NEW + 1].count()
        return sum(map(self.filters.matches_title, newer.values_list("title", flat=True)[: MAX_NEW + 1]))


def ids_of(text: str) -> list[UUID]:
    """Return the run IDs in a comma-separated list. Raise InvalidListQuery unless it has at most PAGE_SIZE IDs."""
    parts = text.split(",") if text else []
    if len(parts) > PAGE_SIZE or not all(UUID_HEX.fullmatch(part) for part in parts):
        raise InvalidListQuery(f"ids must be at most {PAGE_SIZE} run IDs, separated by commas")
    return [UUID(part) for part in parts]


def _statuses(values: Iterable[str]) -> tuple[RunStatus, ...]:
    """Return the statuses without duplicates, in the order of the enum."""
    selected = {value for value in values if value}
    unknown = sorted(selected - set(RunStatus))
    if unknown:
        raise InvalidListQuery(f"status must be one of {', '.join(RunStatus)}, not {unknown[0][:64]!r}")
    return tuple(status for status in RunStatus if status in selected)
