"""Play schedules in parallel and report the results: `python -m tests.chaos [check|all|long|points|steps|programs]`.

Repeat one schedule with `--seed S`, `--point turn.committed:1:KILL`, `--crash turn.committed:7`, `--crowd NAME`,
`--sabotage NAME`, `--broken NAME` or `--program NAME --seed S --runs N`, each with `--engine`.

The exit code is 1 if any check fails. This process does not load Django; each player is a separate process.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import threading
import time
from collections import deque
from pathlib import Path
from typing import Any

from tests.chaos.schedules import catalogue
from tests.chaos.schedules.catalogue import ENGINES
from tests.chaos.verdict import report
from tests.chaos.verdict.result import Result

ROOT = Path(__file__).resolve().parent.parent.parent
#: A schedule that takes longer than this is aborted.
LIMIT_S = 420
READY = '"ready"\n'
MOST_FAILED_STARTS = 6


class Players:
    """Distributes orders to player processes and collects their results."""

    def __init__(self, orders: list[dict[str, Any]], jobs: int) -> None:
        self.results: list[Result] = []
        self._jobs = jobs
        self._failed = 0
        self._of = len(orders)
        self._queues = {engine: deque(o for o in orders if o["engine"] == engine) for engine in ENGINES}
        self._lock = threading.Lock()

    def play(self) -> list[Result]:
        # Half of the players start on each database. A player whose queue is empty takes orders from the other one.
        threads = [
            threading.Thread(target=self._work, args=[ENGINES[number % len(ENGINES)]], daemon=True)
            for number in range(self._jobs)
        ]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        return self.results

    def _work(self, first: str) -> None:
        for engine in sorted(ENGINES, key=lambda name: name != first):
            while self._queues[engine]:
                self._one_player(engine)

    def _one_player(self, engine: str) -> None:
        """Run one player until its queue is empty or the process is lost."""
        player = subprocess.Popen(
            [sys.executable, "-m", "tests.chaos.player", engine],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
            cwd=ROOT,
        )
        assert player.stdin is not None
        assert player.stdout is not None
        with player.stdin, player.stdout:
            if player.stdout.readline() == READY:
                while (order := self._next(engine)) is not None:
                    limit = threading.Timer(LIMIT_S, player.terminate)
                    limit.start()
                    player.stdin.write(json.dumps(order) + "\n")
                    player.stdin.flush()
                    answer = player.stdout.readline()
                    limit.cancel()
                    if not self._take(order, answer):
                        break
            elif self._is_hopeless() and (order := self._next(engine)) is not None:
                self._take(order, "")
        try:
            player.wait(60)
        except subprocess.TimeoutExpired:
            player.kill()
            player.wait()

    def _is_hopeless(self) -> bool:
        """Return whether too many players failed to start. Until then, a player that does not start is replaced."""
        with self._lock:
            self._failed += 1
            return self._failed > MOST_FAILED_STARTS

    def _next(self, engine: str) -> dict[str, Any] | None:
        with self._lock:
            return self._queues[engine].popleft() if self._queues[engine] else None

    def _take(self, order: dict[str, Any], answer: str) -> bool:
        """Record the answer as a result and return whether the player is alive."""
        if answer:
            result = Result(**json.loads(answer))
        else:
            result = Result(json.dumps(order), order["engine"], catalogue.again(order))
            result.wrong("rig", f"its player was lost, or broken off after {LIMIT_S} s")
        with self._lock:
            self.results.append(result)
            print(report.line(result, len(self.results), self._of), flush=True)
            for text in [*result.problems, *result.notes]:
                print(f"    {text}", flush=True)
            if result.problems:
                print(f"    again: {report.COMMAND} {result.again}", flush=True)
        return bool(answer)


def main() -> int:
    asked = _asked()
    orders, wanted = catalogue.asked_for(asked, ENGINES)
    print(f"{len(orders)} schedules, {asked.jobs} side by side", flush=True)
    began = time.monotonic()
    results = Players(orders, min(asked.jobs, len(orders))).play()
    if asked.logs:
        Path(asked.logs).mkdir(parents=True, exist_ok=True)
        for result in results:
            if result.logs:
                name = f"{result.engine}-{result.name}".replace(" ", "-").replace(":", "-").replace("+", "-")
                (Path(asked.logs) / f"{name}.log").write_text("\n".join([*result.problems, result.logs]))
    failures = report.failures(results, wanted)
    print("\n".join(["", *report.lines(results, time.monotonic() - began)]))
    if failures:
        print("\n".join(["", f"{len(failures)} FAILURES", *failures]))
    return 1 if failures else 0


def _asked() -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog=report.COMMAND, description=__doc__)
    parser.add_argument("what", nargs="?", choices=catalogue.COLLECTIONS, default="all")
    parser.add_argument("--engine", choices=ENGINES, help="the database (PostgreSQL)")
    parser.add_argument("--jobs", type=int, default=max(2 * (os.cpu_count() or 1), 2), help="schedules side by side")
    parser.add_argument("--seeds", type=int, help="how many random schedules")
    parser.add_argument("--first", type=int, default=1, metavar="SEED", help="the first seed (1)")
    parser.add_argument("--seed", type=int, help="this one schedule again")
    parser.add_argument("--product-pace", action="store_true", help="with the product's lease, renewal and sweep")
    parser.add_argument("--point", metavar="POINT:HIT:ACTION", help="this one crash point")
    parser.add_argument(
        "--crash", metavar="POINT:STEP", help="this one crash of the run of twelve steps; step 0: always"
    )
    parser.add_argument("--crowd", choices=catalogue.CROWDS, help="this one schedule of a site with many runs")
    parser.add_argument("--program", choices=catalogue.PROGRAMS, help="runs of this program, from a seed on")
    parser.add_argument("--broken", choices=catalogue.BROKEN_PROGRAMS, help="a broken program: red is right with it")
    parser.add_argument("--runs", type=int, help="how many runs of each program")
    parser.add_argument("--sabotage", metavar="NAME", choices=catalogue.SABOTAGES, help="red is right with it")
    parser.add_argument("--logs", metavar="DIRECTORY", help="where to leave what the processes of a failure said")
    return parser.parse_args()


if __name__ == "__main__":
    sys.exit(main())
