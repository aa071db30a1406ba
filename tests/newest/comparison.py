"""Compares the records of a program with the ledger of the model server, and writes the table of all programs."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from decimal import Decimal
from typing import Any

from tests.newest.model_server import Served
from tests.newest.programs.task import CLAUDE, GEMINI, GPT
from tests.newest.script import Tokens

#: US dollars for a million tokens, by model: of uncached input, cache reads, cache writes for five minutes and for one
#: hour, and output. The vendors' published prices of November 2026.
PRICES: Mapping[str, tuple[str, str, str, str, str]] = {
    CLAUDE: ("1", "0.10", "1.25", "2", "5"),
    GPT: ("0.40", "0.10", "0", "0", "1.60"),
    GEMINI: ("0.30", "0.03", "0", "0", "2.50"),
}
TOKENS = ("input", "cache read", "cache write", "cache write 1h", "output", "reasoning")
#: The compared subjects, in the words of the table.
SUBJECTS = ("model calls", "messages", "system messages", "tool calls", *TOKENS, "cost")


@dataclass
class Report:
    """The calls of a program, from one point of view. None: this point of view does not show it."""

    model_calls: int | None = None
    #: The role and the text of each message, without system messages.
    messages: Sequence[tuple[str, str]] | None = None
    system_messages: int | None = None
    #: The tools of the completed calls.
    tool_calls: Sequence[str] | None = None
    #: By the names in `TOKENS`; a missing one is not shown.
    tokens: Mapping[str, int] = field(default_factory=dict)
    #: US dollars.
    cost: Decimal | None = None

    def values(self) -> dict[str, Any]:
        """Return the contents by subject, in a form that is equal for equal contents."""
        texts = (
            None if self.messages is None else Counter((role, "".join(text.split())) for role, text in self.messages)
        )
        shown = {
            "model calls": self.model_calls,
            "messages": texts,
            "system messages": self.system_messages,
            "tool calls": None if self.tool_calls is None else sorted(self.tool_calls),
            "cost": self.cost,
            **self.tokens,
        }
        return {name: value for name, value in shown.items() if value is not None}


def report_of(served: Sequence[Served]) -> Report:
    """Return the answers of the model server to a program."""
    # Some programs name earlier answers by their IDs in a request.
    sent = [message for message in served[-1].conversation.messages if message[0] != "assistant"]
    return Report(
        model_calls=len(served),
        messages=[
            *(message for message in sent if message[0] != "system"),
            *(("assistant", entry.turn.text) for entry in served),
        ],
        system_messages=len({text for role, text in sent if role == "system"}),
        tool_calls=[call.name for entry in served for call in entry.turn.calls],
        tokens=counts(entry.turn.tokens for entry in served),
        cost=sum((cost_of(entry.conversation.model, entry.turn.tokens) for entry in served), Decimal(0)),
    )


def counts(several: Iterable[Tokens]) -> dict[str, int]:
    """Return the sums of tokens by the names in `TOKENS`. Input includes cached tokens, output includes reasoning."""
    rows = [
        (one.all_input, one.cache_read, one.cache_write, one.cache_write_1h, one.all_output, one.reasoning)
        for one in several
    ]
    return dict(zip(TOKENS, map(sum, zip(*rows, strict=True)), strict=True))


def cost_of(model: str, tokens: Tokens) -> Decimal:
    """Return the US dollars of a model call."""
    kinds = (tokens.uncached, tokens.cache_read, tokens.cache_write_5m, tokens.cache_write_1h, tokens.all_output)
    prices = map(Decimal, PRICES[model])
    return sum((price * count for price, count in zip(prices, kinds, strict=True)), Decimal(0)) / 1_000_000


def differences(served: Report, shown: Report) -> list[str]:
    """Return the recorded subjects that differ from the ledger."""
    expected, seen = served.values(), shown.values()
    return [subject for subject in SUBJECTS if subject in seen and seen[subject] != expected[subject]]


@dataclass(frozen=True)
class Row:
    """A row of the table."""

    title: str
    versions: str
    served: Report
    shown: Report
    #: The subjects that the program does not send completely.
    unsent: frozenset[str]
    #: Why the program did not run; empty if it did.
    failure: str = ""

    @property
    def faults(self) -> list[str]:
        """Return the unexpected differences, and the expected differences that no longer exist."""
        found = differences(self.served, self.shown)
        return [
            *(f"{subject} differ: {self._values_of(subject)}" for subject in found if subject not in self.unsent),
            *(f"{subject} are complete now: remove them from `unsent`" for subject in self.unsent - set(found)),
        ]

    def _values_of(self, subject: str) -> str:
        shown, served = self.shown.values()[subject], self.served.values()[subject]
        if isinstance(shown, Counter):
            shown, served = dict(shown - served), dict(served - shown)
        return f"shown {shown}, served {served}"

    def cells(self) -> list[str]:
        """Return the cells of the row: numbers shown of numbers served, if they differ."""
        has_system = self.shown.system_messages is not None
        expected, seen = _numbers(self.served, has_system=has_system), _numbers(self.shown, has_system=has_system)
        cells = [_cell(seen.get(name), expected[name]) for name in COLUMNS]
        return [self.title, self.versions, *cells, ", ".join(sorted(self.unsent, key=SUBJECTS.index)) or "–"]


#: The columns with numbers.
COLUMNS = ("Model calls", "Messages", "Tool calls", "Tokens", "Cost, US$")


def _numbers(report: Report, *, has_system: bool) -> dict[str, str]:
    """Return the numbers of a report as texts, by column. `has_system`: whether system messages count."""
    tokens, system = report.tokens, (report.system_messages or 0) if has_system else 0
    shown = {
        "Model calls": report.model_calls,
        "Messages": None if report.messages is None else len(report.messages) + system,
        "Tool calls": None if report.tool_calls is None else len(report.tool_calls),
        "Tokens": f"{tokens['input']:,} + {tokens['output']:,}" if {"input", "output"} <= tokens.keys() else None,
        "Cost, US$": None if report.cost is None else f"{report.cost:.6f}",
    }
    return {name: str(value) for name, value in shown.items() if value is not None}


def _cell(seen: str | None, expected: str) -> str:
    if seen is None:
        return "–"
    return seen if seen == expected else f"{seen} of {expected}"


def table(rows: Sequence[Row]) -> str:
    """Return the table as Markdown."""
    heads = ["Program", "Versions", *COLUMNS, "Not sent by the program"]
    lines = [heads, ["---"] * len(heads), *(row.cells() for row in rows)]
    return "\n".join(f"| {' | '.join(cells)} |" for cells in lines)
