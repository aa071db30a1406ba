"""DBOS: the steps of one workflow after the other."""

from __future__ import annotations

from importlib.metadata import version

from dbos import DBOS
from dbos_workflow import workflow
from turnstile import Turnstile, arguments


def main() -> None:
    turns, url, window, runs, _ = arguments()
    turnstile = Turnstile(window)
    DBOS(config={"name": "bench", "system_database_url": url, "log_level": "ERROR"})
    converse = workflow(turns, turnstile.step)
    DBOS.launch()
    turnstile.ready(f"dbos {version('dbos')}")
    for _ in range(runs):
        converse()
    turnstile.report()
    DBOS.destroy()


main()
