"""The task that every program executes with its own framework. Uses the standard library only.

A model answers, three tools run one after the other, the model answers again, a person approves, and `publish` runs.
Each call is a line in the ledger, a file outside of the framework.
"""

from __future__ import annotations

import json
import os
import signal
import time
from pathlib import Path

TOOLS = ("tool_1", "tool_2", "tool_3")
KILLED = "tool_3"
PUBLISH = "publish"
#: The wait for the person, by the same name in every framework that names waits.
APPROVAL = "approval"
#: The person has a day.
PATIENCE_S = 86_400
LEDGER, KILL = "COMPARE_LEDGER", "COMPARE_KILL"


def ask_model(number: int) -> str:
    """Replace a model call: record it, and return an answer."""
    _record(f"model_{number}")
    return f"answer {number}"


def call_tool(name: str, key: str = "") -> str:
    """Replace a tool with an effect. `key`: the idempotency key that the framework offers.

    Between the effect of `KILLED` and its return, SIGKILL ends the process and its process group, if the environment
    says after how many seconds.
    """
    _record(name, key)
    if name == KILLED and KILL in os.environ:
        time.sleep(int(os.environ[KILL]))
        os.killpg(0, signal.SIGKILL)
    return f"{name} is done"


def _record(what: str, key: str = "") -> None:
    line = json.dumps({"what": what, "key": key, "at": time.time()})
    with Path(os.environ[LEDGER]).open("a", encoding="utf-8") as ledger:
        ledger.write(f"{line}\n")
        ledger.flush()
        os.fsync(ledger.fileno())
