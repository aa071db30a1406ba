"""Schemas of one project that take long to check: other projects are answered, and SIGTERM ends the process."""

from __future__ import annotations

import signal
import statistics
import threading
import time

import httpx

from runs.management.commands.serve import GRACE_S
from tests.support.accounts import with_key
from tests.support.factories import make_project
from tests.support.flows.expensive_schemas import EXPENSIVE_INPUTS, EXPENSIVE_SCHEMA
from tests.support.flows.flow_runs import CONSTANT, make_flow
from tests.support.plugins.web_fixtures import MakeWeb

#: Requests at once: more than one project gets threads for.
ATTACKERS = 6
REQUESTS = 25
#: Generous, for a machine that does other work: without a limit, a check takes minutes.
LONGEST_S = 5.0


def p95_of(seconds: list[float]) -> float:
    return statistics.quantiles(seconds, n=20)[-1]


def test_expensive_schemas_hold_up_no_other_project(web_process: MakeWeb) -> None:
    attacker, other = make_project("attacker"), make_project("other")
    make_flow({**CONSTANT, "inputs": EXPENSIVE_SCHEMA}, attacker)
    reader = with_key(other, "read")
    keys = [with_key(attacker, "write") for _ in range(ATTACKERS)]
    web = web_process()
    assert web.process is not None
    codes: list[str] = []
    stop = threading.Event()

    def attack(headers: dict[str, str]) -> None:
        body = {"flow_id": "sample", "inputs": EXPENSIVE_INPUTS}
        while not stop.is_set():
            try:
                url = f"{web.url}/api/projects/attacker/flow-runs"
                answer = httpx.post(url, json=body, headers=headers, timeout=120)
            except httpx.TransportError:
                return  # the server has ended
            if not stop.is_set():
                codes.append(answer.json()["code"])

    def answer_s() -> float:
        began = time.monotonic()
        answer = httpx.get(f"{web.url}/api/projects/other/agent-runs", headers=reader, timeout=60)
        assert answer.status_code == 200
        return time.monotonic() - began

    before = p95_of([answer_s() for _ in range(REQUESTS)])
    threads = [threading.Thread(target=attack, args=[headers], daemon=True) for headers in keys]
    for thread in threads:
        thread.start()
    during = p95_of([answer_s() for _ in range(REQUESTS)])
    print(f"p95 of another project: {before:.3f} s before the attack, {during:.3f} s during it")
    assert during < LONGEST_S
    while not codes:
        time.sleep(0.05)
    assert set(codes) == {"schema_too_expensive"}

    stop.set()
    began = time.monotonic()
    web.process.signal(signal.SIGTERM)
    web.process.wait(within_s=GRACE_S + 5, why="ended by SIGTERM while schemas are checked")
    print(f"ended {time.monotonic() - began:.1f} s after SIGTERM")
    for thread in threads:
        thread.join(30)
