"""What each program has in common: the script of its model, its tools, and its required names.

A program is a module of this package. `WAITS_OF` has the waits of the script that its framework knows: the script
leaves out the others. Its function `served()` returns its agents, as a list of arguments for
`agentops.durable.serve`: the agent `trip`, and with the wait `check_visa` also the agent `visa`.

The model of both agents calls `answer` for each of its answers: it returns what the model says and which calls it
requests. The agents execute these calls by the functions of `TOOLS`, or as waits. The first message of a conversation
names the trip: see `trip_of`. So neither the model nor the tools need to know anything about the run. A framework may
put a prefix before the name of a tool, as in `mcp__trip__pay`: see `bare`.

`TOOLS` and `answer` write to the ledger, and may be killed in it.
"""

from __future__ import annotations

import re
from collections.abc import Awaitable, Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Literal

from tests.chaos.programs import ledger

#: The names of the agents, and of the model.
TRIP, VISA, MODEL = "trip", "visa", "scripted-traveller"
#: Waits that a program may know, and how the rig ends them: an answer, a child run, an approval, the time, a signal.
ASK, CHECK_VISA, CONFIRM, REST, DEPARTURE = "ask_traveller", "check_visa", "confirm", "rest", "await_departure"
WAITS = frozenset({ASK, CHECK_VISA, CONFIRM, REST, DEPARTURE})
#: The waits of each program.
WAITS_OF = {
    "plain": WAITS,
    "pydantic_ai": frozenset({ASK, CHECK_VISA}),
    "langgraph": WAITS,
    "openai_agents": frozenset({CHECK_VISA}),
    "claude": frozenset({ASK}),
}
QUESTION, CHOICES, REPLY = "Which seat?", ["window", "aisle"], "window"
SIGNAL, SIGNAL_PAYLOAD = "departure", {"gate": 7}
REST_S = 0.3


@dataclass(frozen=True)
class Asked:
    """A call that the model requests: of a tool, or of a wait."""

    name: str
    arguments: Mapping[str, str] = field(default_factory=dict)

    @property
    def is_wait(self) -> bool:
        return self.name in WAITS

    def call_id(self, number: int) -> str:
        """Return the ID of the call in the answer with this number. `name_of` returns its name."""
        return f"{number}-{self.name}"


@dataclass(frozen=True)
class Turn:
    """An answer of the model. The conversation is over if it has no calls."""

    text: str
    calls: Sequence[Asked] = ()


def trip_of(text: str) -> str:
    """Return the name of the trip in the first message of a conversation. Child runs have other names."""
    found = re.search(r"trip-[\w-]+(/visa)?", text)
    assert found, text
    return found[0]


def name_of(call_id: str) -> str:
    """Return the name of a call by its ID."""
    return call_id.partition("-")[2]


def bare(name: str) -> str:
    """Return the name of a tool without the prefix of a framework."""
    return name.rpartition("__")[2]


def prompt_of(trip: str) -> str:
    return f"Plan {trip}."


def child_prompt(trip: str) -> str:
    """Return the prompt of the child run of a trip: the agent `visa`."""
    return f"Check {trip}/visa."


async def answer(trip: str, number: int, results: Mapping[str, str], waits: Collection[str] = WAITS) -> Turn:
    """Return the model's answer. `number`: of the answer, from 1.

    `results`: the texts that the calls and waits so far returned, by name.
    """
    step = f"model:{number}"
    ledger.note(trip, step, "begin")
    await ledger.moment(trip, step)
    turn = script(trip, results, waits)[number - 1]
    ledger.note(trip, step, "end")
    return turn


def script(trip: str, results: Mapping[str, str], waits: Collection[str] = WAITS) -> list[Turn]:
    """Return all answers for a trip. Their texts depend on the results before them."""

    def told(name: str) -> str:
        return results.get(name, "nothing yet")

    if trip.endswith("/visa"):
        return [Turn("I stamp it.", [Asked("stamp", {"trip": trip})]), Turn(f"The visa is ready: {told('stamp')}.")]
    one = {"trip": trip}
    turns = [
        Turn("First I look.", [Asked("weather", one), Asked("find_train", one)]),
        Turn("A bed.", [Asked("book_hotel", one | {"weather": told("weather")})]),
        Turn("A question.", [Asked(ASK, {"question": QUESTION})]),
        Turn("A seat.", [Asked("book_train", one | {"train": told("find_train"), "seat": told(ASK)})]),
        Turn("Is all allowed?", [Asked(CHECK_VISA, {"prompt": child_prompt(trip)}), Asked(CONFIRM)]),
        Turn(
            "That is it.", [Asked("pay", one | {"what": told("book_train")}), Asked("notify", one | {"who": "hotel"})]
        ),
        Turn("Now we wait.", [Asked(REST), Asked(DEPARTURE)]),
    ]
    known = [Turn(t.text, [c for c in t.calls if not c.is_wait or c.name in waits]) for t in turns]
    summary = "; ".join(f"{name}: {results[name]}" for name in sorted(results))
    return [*(turn for turn in known if turn.calls), Turn(f"All is done. {summary}")]


# --- Tools ------------------------------------------------------------------------------------------------------


async def weather(trip: str) -> str:
    """Return the weather at the destination."""
    return await _work("weather", trip, f"sunny on {trip}")


async def find_train(trip: str) -> str:
    """Return a train."""
    return await _work("find_train", trip, f"the night train of {trip}")


async def book_hotel(trip: str, weather: str) -> str:
    """Book a hotel for a weather."""
    return await _work("book_hotel", trip, f"a room, {weather}", has_effect=True)


async def book_train(trip: str, train: str, seat: str) -> str:
    """Book a seat in a train."""
    return await _work("book_train", trip, f"a seat at the {seat} in {train}", has_effect=True)


async def pay(trip: str, what: str) -> str:
    """Pay."""
    return await _work("pay", trip, f"paid for {what}", has_effect=True)


async def notify(trip: str, who: str) -> str:
    """Send a notice, which may be sent again."""
    return await _work("notify", trip, f"{who} knows of {trip}", has_effect=True)


async def stamp(trip: str) -> str:
    """Stamp a visa."""
    return await _work("stamp", trip, f"stamped {trip}", has_effect=True)


async def _work(name: str, trip: str, output: str, *, has_effect: bool = False) -> str:
    """Execute a tool: the process may be killed before and after its effect, which the ledger records."""
    ledger.note(trip, name, "begin")
    await ledger.moment(trip, f"{name}:before")
    if has_effect:
        ledger.note(trip, name, "effect", output=output)
    await ledger.moment(trip, f"{name}:after")
    ledger.note(trip, name, "end")
    return output


@dataclass(frozen=True)
class TripTool:
    """A tool, and what happens if the process dies in it."""

    function: Callable[..., Awaitable[str]]
    effect: Literal["read", "idempotent", "once"]
    needs_approval: bool = False


TOOLS = {
    "weather": TripTool(weather, "read"),
    "find_train": TripTool(find_train, "read"),
    "book_hotel": TripTool(book_hotel, "once"),
    "book_train": TripTool(book_train, "once", needs_approval=True),
    "pay": TripTool(pay, "once"),
    "notify": TripTool(notify, "idempotent"),
    "stamp": TripTool(stamp, "once"),
}
#: The tools of each agent.
TOOLS_OF = {TRIP: [name for name in TOOLS if name != "stamp"], VISA: ["stamp"]}
