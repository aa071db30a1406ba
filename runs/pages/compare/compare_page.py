"""Two runs side by side: their facts, their steps aligned, and where they begin to differ."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any
from uuid import UUID

from django.db.models.fields.json import KT
from django.http import HttpRequest, HttpResponse
from django.shortcuts import render
from django.urls import reverse

from agentops.http.methods import require_safe
from agentops.projects.access import ANONYMOUS, Principal, projects_for
from agentops.projects.errors import AuthRequired
from agentops.projects.requests import principal_of
from runs.access import run_for
from runs.models import AgentRun
from runs.pages.compare import conversations
from runs.pages.compare.conversations import ConversationSide, StepPlace, StepTexts, shown
from runs.pages.compare.differences import TextDifference, difference
from runs.pages.compare.lcs import Pair, align
from runs.pages.run.facts import Loaded, facts_of, loaded, with_facts
from runs.statuses import ToolStatus
from timeline import log
from timeline.events import EventType
from timeline.shown import clean, lasting

#: Pairs of steps on one page.
PAGE = 20
#: Pairs that are looked through for the first difference of their texts, where all calls are the same.
SCAN = 400
#: Calls of one step that are compared.
MAX_CALLS = 20
MAX_CHOICES = 200
NO_CALL = ("", "", "", "")
NAMES = {"system": "Instructions", "user": "User", "assistant": "Answer"}


@dataclass(frozen=True)
class Side:
    run: AgentRun
    title: str
    facts: Mapping[str, str]


@dataclass(frozen=True)
class Beside:
    """A pair of steps as the page shows it."""

    number: int
    a: StepPlace | None
    b: StepPlace | None
    #: Where each begins in its run's timeline.
    href_a: str
    href_b: str
    differences: Sequence[TextDifference]
    is_first: bool

    @property
    def same(self) -> bool:
        return self.a is not None and self.b is not None and all(one.same for one in self.differences)


class Comparison:
    """The steps of two conversations that are not the same rows, in pairs."""

    def __init__(self, a: ConversationSide, b: ConversationSide) -> None:
        self.a, self.b = a, b
        pairs = align(a.keys, b.keys)
        #: How many steps both share: a fork refers to those before it, and a resumed run goes on after them.
        self.shared = next((at for at, pair in enumerate(pairs) if not self._is_shared(pair)), len(pairs))
        self.pairs = pairs[self.shared :]

    def _is_shared(self, pair: Pair) -> bool:
        return pair.same and self.places(pair)[0] == self.places(pair)[1]

    def places(self, pair: Pair) -> tuple[StepPlace | None, StepPlace | None]:
        return (
            None if pair.a is None else self.a.places[pair.a],
            None if pair.b is None else self.b.places[pair.b],
        )

    def texts(self, pairs: Sequence[Pair]) -> Iterator[tuple[StepTexts, StepTexts]]:
        """What both sides of each pair say."""
        wanted = [place for pair in pairs for place in self.places(pair) if place is not None]
        found = conversations.texts_of(wanted)
        for pair in pairs:
            one, other = self.places(pair)
            yield (found[one] if one else StepTexts()), (found[other] if other else StepTexts())

    def first_difference(self) -> int | None:
        """The first pair that differs; texts are looked at only where the calls say nothing."""
        by_calls = next((at for at, pair in enumerate(self.pairs) if not pair.same), None)
        before = self.pairs[: min(SCAN, len(self.pairs) if by_calls is None else by_calls)]
        for start in range(0, len(before), PAGE):
            for at, (one, other) in enumerate(self.texts(before[start : start + PAGE]), start):
                if one != other:
                    return at
        return by_calls


@require_safe
def compare(request: HttpRequest) -> HttpResponse:
    """`a` and `b` are runs; with one of them alone it is compared with the run that it goes back to."""
    principal = principal_of(request)
    if principal == ANONYMOUS:
        raise AuthRequired
    asked = {name: request.GET.get(name, "").strip() for name in ("a", "b")}
    ids = {name: _id(text) for name, text in asked.items()}
    wrong = [name for name, text in asked.items() if text and ids[name] is None]
    two = None if wrong else _two(principal, ids["a"], ids["b"])
    if two is None:
        context = {"asked": asked, "wrong": wrong, "alone": bool(ids["a"] or ids["b"])}
        return render(request, "runs/compare_form.html", context, status=400 if wrong else 200)
    return render(request, "runs/compare.html", _context(principal, *two, page=request.GET.get("page", "")))


def _id(text: str) -> UUID | None:
    try:
        return UUID(text)
    except ValueError:
        return None


def _two(principal: Principal, a: UUID | None, b: UUID | None) -> tuple[Loaded, Loaded] | None:
    if a is None and b is None:
        return None
    if a is not None and b is not None:
        return _found(principal, a), _found(principal, b)
    later = _found(principal, a or b)
    origin = later.run.resumed_from_id or later.run.forked_from_id
    return None if origin is None else (_found(principal, origin), later)


def _found(principal: Principal, run_id: UUID | None) -> Loaded:
    assert run_id is not None
    return loaded(run_for(principal, run_id, among=with_facts(AgentRun.objects.all())))


def _context(principal: Principal, a: Loaded, b: Loaded, *, page: str) -> dict[str, Any]:
    comparison = Comparison(conversations.read(a.run), conversations.read(b.run))
    first = comparison.first_difference()
    last_page = max((len(comparison.pairs) - 1) // PAGE, 0)
    number = min(int(page), last_page) if page.isascii() and page.isdigit() and len(page) < 6 else 0
    sides = (_side(a), _side(b))
    return {
        "project": a.run.project,
        "projects": projects_for(principal).order_by("name", "pk")[:MAX_CHOICES],
        "sides": sides,
        "facts": [(name, text, sides[1].facts[name]) for name, text in sides[0].facts.items()],
        "agents": _agents(a.run, b.run),
        "shared": comparison.shared,
        "count": len(comparison.pairs),
        "pairs": list(_shown(comparison, number, first)),
        "first": first,
        "first_page": None if first is None else first // PAGE,
        "page": number,
        "before": number - 1 if number else None,
        "after": number + 1 if number < last_page else None,
    }


def _side(found: Loaded) -> Side:
    facts, run = facts_of(found), found.run
    told = {
        "Status": f"{run.status} ({clean(run.status_reason)})" if run.status_reason else run.status,
        "Agent": f"{found.agent['agent_id']} v{found.agent['version']}",
        "Model": f"{found.agent['provider']} {found.agent['model']}",
        "Steps": f"{run.step_count}, {facts.steps} of them by this run",
        "Step budget": str(run.max_steps),
        "Tool calls": str(facts.all_calls),
        "Input tokens": f"{run.input_tokens:,}",
        "Output tokens": f"{run.output_tokens:,}",
        "Cost": facts.cost or "unpriced",
        "Duration": "–" if facts.duration is None else lasting(facts.duration),
    }
    return Side(run, clean(run.title) or "(without a title)", told)


def _agents(a: AgentRun, b: AgentRun) -> list[TextDifference]:
    """What the agents of the two say differently, whole as they were frozen."""
    names = {"instructions": "Instructions of the agent", "settings": "Settings of the agent"}
    columns = {f"has_{name}": KT(f"agent_config__{name}") for name in names}
    rows = AgentRun.objects.filter(pk__in=[a.pk, b.pk]).annotate(**columns)
    said = {run_id: texts for run_id, *texts in rows.values_list("pk", *columns)}
    pairs = zip(names.values(), said[a.pk], said[b.pk], strict=True)
    found = [difference(name, shown(one or ""), shown(other or "")) for name, one, other in pairs]
    return [one for one in found if not one.same]


def _shown(comparison: Comparison, page: int, first: int | None) -> Iterator[Beside]:
    start = page * PAGE
    pairs = comparison.pairs[start : start + PAGE]
    hrefs = _hrefs(place for pair in pairs for place in comparison.places(pair) if place is not None)
    for number, (pair, texts) in enumerate(zip(pairs, comparison.texts(pairs), strict=True), start):
        a, b = comparison.places(pair)
        addresses = (hrefs.get(a, "") if a else "", hrefs.get(b, "") if b else "")
        yield Beside(number, a, b, *addresses, list(_differences(*texts)), is_first=number == first)


def _hrefs(places: Iterable[StepPlace]) -> dict[StepPlace, str]:
    """The addresses of the steps' first model calls. One query for each run."""
    steps: dict[UUID, set[int]] = {}
    for place in places:
        steps.setdefault(place.run_id, set()).add(place.step)
    found: dict[StepPlace, str] = {}
    for run_id, numbers in steps.items():
        page = reverse("runs:detail", args=[run_id])
        begun = log.events_of(run_id).filter(type=EventType.LLM_TURN_START, step__in=numbers).order_by("-seq")
        for step, seq in begun.values_list("step", "seq"):
            found[StepPlace(run_id, step or 0)] = f"{page}?event={seq}#target"
    return found


def _differences(a: StepTexts, b: StepTexts) -> Iterator[TextDifference]:
    for role, name in NAMES.items():
        if role in a.said or role in b.said:
            yield difference(name, shown(a.said.get(role, "")), shown(b.said.get(role, "")))
    for pair in align([call[:2] for call in a.calls], [call[:2] for call in b.calls])[:MAX_CALLS]:
        one = NO_CALL if pair.a is None else a.calls[pair.a]
        other = NO_CALL if pair.b is None else b.calls[pair.b]
        name = clean(" / ".join(dict.fromkeys(filter(None, [one[0], other[0]]))))
        yield difference(f"{name}: arguments", shown(one[1]), shown(other[1]))
        yield difference(f"{name}: output", _outcome(*one[2:]), _outcome(*other[2:]))


def _outcome(output: str, status: str) -> str:
    """An output; how the call ended, where that is not as it should be."""
    text = shown(output)
    return text if status in ("", ToolStatus.COMPLETED) else f"{text}\n({status})".strip()
