"""`python -m tests.support.ingest_storm`: the full storm, on a separate PostgreSQL server or on SQLite.

Prints how long the requests of another project took. Exits with code 1 if an event was lost, doubled or out of order,
or if, with --within, another project waited for more than this many times its idle value.
"""

from __future__ import annotations

import argparse
import os
import shutil
import sys
import tempfile
from contextlib import ExitStack
from pathlib import Path

from tests.support.processes.postgres_server import OwnPostgres


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--engine", choices=["postgres", "sqlite"], default="postgres")
    parser.add_argument("--posters", type=int, default=100)
    parser.add_argument("--seconds", type=float, default=60)
    parser.add_argument("--size", type=int, default=10, help="events of a batch")
    parser.add_argument("--pause", type=float, default=0.0, help="seconds between two batches of a poster")
    parser.add_argument("--kill-every", type=float, default=5.0, help="seconds between two kills; 0: none")
    parser.add_argument("--restarts", type=int, default=2, help="restarts of the PostgreSQL server")
    parser.add_argument("--within", type=float, default=0.0, help="the largest ratio of latencies; 0: any")
    options = parser.parse_args()
    with ExitStack() as stack:
        directory = Path(tempfile.mkdtemp(prefix="storm-"))
        stack.callback(shutil.rmtree, directory, ignore_errors=True)
        cluster = None
        if options.engine == "postgres":
            cluster = OwnPostgres()
            stack.callback(cluster.stop)
            cluster.start()
        _set_up(directory, cluster.url if cluster else f"sqlite:///{directory}/unused.sqlite3")
        return _play(options, directory, cluster, stack)


def _set_up(directory: Path, database_url: str) -> None:
    for name in [name for name in os.environ if name.startswith("AGENTOPS_")]:
        del os.environ[name]
    os.environ |= {
        "AGENTOPS_HOME": str(directory),
        "AGENTOPS_TESTING": "1",
        "DATABASE_URL": database_url,
        "DJANGO_SETTINGS_MODULE": "agentops.settings",
        "REDIS_URL": "",
        "SECRET_KEY": "for-the-storm-and-nothing-else-0123456789-abcdefgh",
    }
    import django

    django.setup()


def _play(options: argparse.Namespace, directory: Path, cluster: OwnPostgres | None, stack: ExitStack) -> int:
    # Needs the configured Django.
    from tests.support.ingest_storm.storm import Storm
    from tests.support.processes.child_processes import ForkServer
    from tests.support.processes.databases import Databases, looking_at
    from tests.support.processes.stage import Stage

    fork_server = ForkServer()
    stack.callback(fork_server.close)
    databases = Databases(options.engine, directory)
    name = stack.enter_context(databases.fresh())
    stack.enter_context(looking_at(name))
    stage = Stage(fork_server, databases, name, directory)
    stack.callback(stage.close)
    outcome = Storm(
        stage, options.posters, options.seconds, options.size, options.pause, kill_every_s=options.kill_every,
        restart_database=cluster.restart if cluster else None, restarts=options.restarts if cluster else 0,
    ).play()  # fmt: skip
    print(outcome.report())
    worst = max(outcome.ratio(kind, 95) for kind in outcome.idle)
    if options.within and worst > options.within:
        print(f"another project waited {worst:.1f} times as long as without load; allowed are {options.within:g}")
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
