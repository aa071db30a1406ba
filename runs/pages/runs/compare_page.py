"""The page that compares two runs: key facts, aligned steps and the first difference."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any
from uuid import UUID

from django.db.models.fields.json import KT
from django.http import HttpRequest, HttpResponse
from django.shortcuts import render
from django.urls import reverse

from agentops.accounts.access import ANONYMOUS, Principal
from agentops.accounts.errors import AuthRequired
from agentops.accounts.requests import principal_of
from agentops.base.http.methods import require_safe
from runs.access import run_for
from runs.changes.alignment import Pair, align
from runs.models import AgentRun
from runs.pages.content.differences import TextDifference, difference
from runs.pages.page_parts import parse_uuid
from runs.pages.run.any_run import page_context
from runs.pages.run.facts import RunData, facts_of, run_data_of, with_facts
from runs.pages.runs import compared_conversations
from runs.pages.runs.compared_conversations import ConversationSide, StepPosition, StepTexts, display_text
from runs.statuses import ToolStatus
from timeline import log
from timeline.display import clean, format_elapsed
from timeline.events import EventType
from timeline.reasons import reason_label

#: Number of pairs of steps on a page.
PAGE = 20
#: Number of pairs with identical tool calls whose texts are searched for the first difference.
SCAN = 400
#: Number of tool calls of a step that are compared.
MAX_CALLS = 20
#: Stands for the call of a step that only the other step has: name, arguments, output and status.
NO_CALL = ("", "", "", "")
#: Role of a message → title.
NAMES = {"system": "Instructions", "user": "User", "assistant": "Answer"}


@dataclass(frozen=True)
class Side:
    """A compared run, its title and its key facts by name."""

    run: AgentRun
    title: str
    facts: Mapping[str, str]


@dataclass(frozen=True)
class StepComparison:
    """A pair of steps with the differences between their texts."""

    number: int
    a: StepPosition | None
    b: StepPosition | None
    #: URLs of the steps in the timelines of their runs; empty if the step has no model call.
    href_a: str
    href_b: str
    differences: Sequence[TextDifference]
    is_first: bool

    @property
    def same(self) -> bool:
        """Return whether both runs have the step and all its texts are equal."""
        return self.a is not None and self.b is not None and all(one.same for one in self.differences)


class Comparison:
    """The aligned steps of two conversations, without the steps that both have in common as the same rows."""

    def __init__(self, a: ConversationSide, b: ConversationSide) -> None:
        self.a, self.b = a, b
        pairs = align(a.keys, b.keys)
        #: Number of common steps: a forked or resumed run refers to the rows of the steps before it.
        self.shared_count = next((at for at, pair in enumerate(pairs) if not self._is_shared(pair)), len(pairs))
        self.pairs = pairs[self.shared_count :]

    def _is_shared(self, pair: Pair) -> bool:
        return pair.same and self.positions(pair)[0] == self.positions(pair)[1]

    def positions(self, pair: Pair) -> tuple[StepPosition | None, StepPosition | None]:
        """Return the steps of `pair` in the two conversations; None for a conversation without a step there."""
        return (
            None if pair.a is None else self.a.positions[pair.a],
            None if pair.b is None else self.b.positions[pair.b],
        )

    def texts(self, pairs: Sequence[Pair]) -> Iterator[tuple[StepTexts, StepTexts]]:
        """Yield the texts of both steps of each pair. Two queries per run."""
        positions = [position for pair in pairs for position in self.positions(pair) if position is not None]
        texts = compared_conversations.texts_of(positions)
        for pair in pairs:
            one, other = self.positions(pair)
            yield (texts[one] if one else StepTexts()), (texts[other] if other else StepTexts())

    def first_difference(self) -> int | None:
        """Return the index of the first pair that differs, or None.

        Texts are compared only up to the first pair with different tool calls, and in at most SCAN pairs.
        """
        by_calls = next((at for at, pair in enumerate(self.pairs) if not pair.same), None)
        before = self.pairs[: min(SCAN, len(self.pairs) if by_calls is None else by_calls)]
        for start in range(0, len(before), PAGE):
            for at, (one, other) in enumerate(self.texts(before[start : start + PAGE]), start):
                if one != other:
                    return at
        return by_calls


@require_safe
def compare(request: HttpRequest) -> HttpResponse:
    """Compare the runs with the IDs `a` and `b`; with one ID, that run with the run that it continues or forks.

    Without a run to compare with, or with an invalid ID, show a form.
    """
    principal = principal_of(request)
    if principal == ANONYMOUS:
        raise AuthRequired
    values = {name: request.GET.get(name, "").strip() for name in ("a", "b")}
    ids = {name: parse_uuid(text) for name, text in values.items()}
    invalid = [text for name, text in values.items() if text and ids[name] is None]
    runs = None if invalid else _load_both(principal, ids["a"], ids["b"])
    if runs is None:
        context = {"values": values, "invalid": invalid, "has_one_run": bool(ids["a"] or ids["b"])}
        return render(request, "runs/compare/compare_form.html", context, status=400 if invalid else 200)
    return render(request, "runs/compare/compare.html", _context(principal, *runs, page=request.GET.get("page", "")))


def _load_both(principal: Principal, a: UUID | None, b: UUID | None) -> tuple[RunData, RunData] | None:
    """Return the runs to compare, the older one first if only one ID is known; None without a run to compare with."""
    if a is None and b is None:
        return None
    if a is not None and b is not None:
        return _load(principal, a), _load(principal, b)
    later = _load(principal, a or b)
    origin = later.run.resumed_from_id or later.run.forked_from_id
    return None if origin is None else (_load(principal, origin), later)


def _load(principal: Principal, run_id: UUID | None) -> RunData:
    assert run_id is not None
    return run_data_of(run_for(principal, run_id, among=with_facts(AgentRun.objects.all())))


def _context(principal: Principal, a: RunData, b: RunData, *, page: str) -> dict[str, Any]:
    comparison = Comparison(compared_conversations.read(a.run), compared_conversations.read(b.run))
    first = comparison.first_difference()
    last_page = max((len(comparison.pairs) - 1) // PAGE, 0)
    number = min(int(page), last_page) if page.isascii() and page.isdigit() and len(page) < 6 else 0
    sides = (_side(a), _side(b))
    return {
        **page_context(principal, a.run),
        "sides": sides,
        "facts": [(name, text, sides[1].facts[name]) for name, text in sides[0].facts.items()],
        "agents": _agents(a.run, b.run),
        "shared": comparison.shared_count,
        "count": len(comparison.pairs),
        "pairs": list(_step_comparisons(comparison, number, first)),
        "first": first,
        "first_page": None if first is None else first // PAGE,
        "page": number,
        "before": number - 1 if number else None,
        "after": number + 1 if number < last_page else None,
    }


def _side(data: RunData) -> Side:
    """Return a compared run with its key facts."""
    facts, run = facts_of(data), data.run
    fact_texts = {
        "Status": f"{run.status} ({clean(reason_label(run.status_reason))})" if run.status_reason else run.status,
        "Agent": " v".join(filter(None, (data.agent["agent_id"], data.agent["version"]))) or "–",
        "Model": " ".join(filter(None, (data.agent["provider"], data.agent["model"]))) or "–",
        "Steps": f"{run.step_count} ({facts.steps} in this run)",
        # External runs have no known step budget.
        "Step budget": str(run.max_steps) if run.source == AgentRun.Source.NATIVE else "–",
        "Tool calls": str(facts.all_calls),
        "Input tokens": f"{run.input_tokens:,}",
        "Output tokens": f"{run.output_tokens:,}",
        "Cost": facts.cost_text,
        "Duration": "–" if facts.duration is None else format_elapsed(facts.duration),
    }
    return Side(run, clean(run.title) or "(untitled)", fact_texts)


def _agents(a: AgentRun, b: AgentRun) -> list[TextDifference]:
    """Return the differences between the instructions and settings with which the two runs were created."""
    names = {"instructions": "Agent instructions", "settings": "Agent settings"}
    columns = {f"has_{name}": KT(f"agent_config__{name}") for name in names}
    rows = AgentRun.objects.filter(pk__in=[a.pk, b.pk]).annotate(**columns)
    texts_by_run = {run_id: texts for run_id, *texts in rows.values_list("pk", *columns)}
    pairs = zip(names.values(), texts_by_run[a.pk], texts_by_run[b.pk], strict=True)
    differences = [difference(name, display_text(one or ""), display_text(other or "")) for name, one, other in pairs]
    return [one for one in differences if not one.same]


def _step_comparisons(comparison: Comparison, page: int, first: int | None) -> Iterator[StepComparison]:
    """Yield the comparisons of a page. `first` is the index of the first pair that differs."""
    start = page * PAGE
    pairs = comparison.pairs[start : start + PAGE]
    hrefs = _hrefs(position for pair in pairs for position in comparison.positions(pair) if position is not None)
    for number, (pair, texts) in enumerate(zip(pairs, comparison.texts(pairs), strict=True), start):
        a, b = comparison.positions(pair)
        addresses = (hrefs.get(a, "") if a else "", hrefs.get(b, "") if b else "")
        yield StepComparison(number, a, b, *addresses, list(_differences(*texts)), is_first=number == first)


def _hrefs(positions: Iterable[StepPosition]) -> dict[StepPosition, str]:
    """Return the URLs of the steps' first model calls. One query per run."""
    steps: dict[UUID, set[int]] = {}
    for position in positions:
        steps.setdefault(position.run_id, set()).add(position.step)
    hrefs: dict[StepPosition, str] = {}
    for run_id, numbers in steps.items():
        page = reverse("runs:detail", args=[run_id])
        turn_starts = log.events_of(run_id).filter(type=EventType.LLM_TURN_START, step__in=numbers).order_by("-seq")
        for step, seq in turn_starts.values_list("step", "seq"):
            hrefs[StepPosition(run_id, step or 0)] = f"{page}?event={seq}#target"
    return hrefs


def _differences(a: StepTexts, b: StepTexts) -> Iterator[TextDifference]:
    """Yield the differences between two steps: of their messages by role, and of their aligned tool calls."""
    for role, name in NAMES.items():
        if role in a.messages or role in b.messages:
            yield difference(name, display_text(a.messages.get(role, "")), display_text(b.messages.get(role, "")))
    for pair in align([call[:2] for call in a.calls], [call[:2] for call in b.calls])[:MAX_CALLS]:
        one = NO_CALL if pair.a is None else a.calls[pair.a]
        other = NO_CALL if pair.b is None else b.calls[pair.b]
        name = clean(" / ".join(dict.fromkeys(filter(None, [one[0], other[0]]))))
        yield difference(f"{name}: arguments", display_text(one[1]), display_text(other[1]))
        yield difference(f"{name}: output", _outcome(*one[2:]), _outcome(*other[2:]))


def _outcome(output: str, status: str) -> str:
    """Return the output of a call, with its status unless it completed."""
    text = display_text(output)
    return text if status in ("", ToolStatus.COMPLETED) else f"{text}\n({status})".strip()
