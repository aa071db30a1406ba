"""DBOS: many workflows at once in one process, with one connection each."""

from __future__ import annotations

from importlib.metadata import version

from dbos import DBOS
from dbos_workflow import workflow
from turnstile import arguments, rounds


def main() -> None:
    turns, url, _, runs, _ = arguments()
    pools = {"sys_db_pool_size": runs, "max_executor_threads": 2 * runs}
    DBOS(config={"name": "bench", "system_database_url": url, "log_level": "ERROR", **pools})
    converse = workflow(turns, lambda: None)

    def all_of_them() -> None:
        for handle in [DBOS.start_workflow(converse) for _ in range(runs)]:
            handle.get_result()

    DBOS.launch()
    rounds(f"dbos {version('dbos')}", all_of_them)
    DBOS.destroy()


main()
