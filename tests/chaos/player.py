"""A process that plays schedules in sequence on one kind of database: `python -m tests.chaos.player ENGINE`.

It reads one order as JSON from each line and writes one result. Several players run in parallel. Each has its own
server, broker and processes, so that they share only the machine.
"""

from __future__ import annotations

import json
import os
import shutil
import signal
import sys
import tempfile
import time
import traceback
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

from tests.support.databases import OwnPostgres

if TYPE_CHECKING:
    from tests.chaos.environment.player_environment import PlayerEnvironment
    from tests.chaos.verdict.result import Result


@contextmanager
def prepare_workspace(engine: str) -> Iterator[PlayerEnvironment]:
    """Set up Django and yield this player's environment. A process can have only one."""
    with ExitStack() as stack:
        directory = Path(tempfile.mkdtemp(prefix="chaos-"))
        stack.callback(shutil.rmtree, directory, ignore_errors=True)
        cluster = None
        if engine == "postgres":
            cluster = OwnPostgres()
            stack.callback(cluster.stop)
            cluster.start()
        set_up(directory, cluster.url if cluster else f"sqlite:///{directory}/unused.sqlite3")
        from tests.chaos.environment.player_environment import PlayerEnvironment
        from tests.support.child_processes import ForkServer
        from tests.support.databases import Databases, OwnRedis

        fork_server = ForkServer()
        stack.callback(fork_server.close)
        databases = Databases(engine, directory)
        stack.callback(databases.close)
        redis = OwnRedis(directory, int(os.environ["REDIS_URL"].rpartition(":")[2].partition("/")[0]))
        stack.callback(redis.kill)
        yield PlayerEnvironment(engine, directory, fork_server, databases, redis, cluster)


def set_up(directory: Path, database_url: str) -> None:
    """Do what tests/conftest.py does for the suite. Choose the broker's port here, because the settings name it."""
    import socket

    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    for name in [name for name in os.environ if name.startswith(("AGENTOPS_", "CHAOS_"))]:
        del os.environ[name]
    os.environ |= {
        "AGENTOPS_HOME": str(directory),
        "AGENTOPS_TESTING": "1",
        "AGENTOPS_PROCESS_NAME": "chaos-player",
        "DATABASE_URL": database_url,
        "DJANGO_SETTINGS_MODULE": "tests.chaos.environment.settings",
        "LOG_LEVEL": "ERROR",
        "REDIS_URL": f"redis://127.0.0.1:{port}/0",
        "SECRET_KEY": "for-the-chaos-rig-and-nothing-else-0123456789-abcdef",
    }
    import django
    import pydantic_ai.models

    django.setup()
    pydantic_ai.models.ALLOW_MODEL_REQUESTS = False


def obey(environment: PlayerEnvironment, order: dict[str, Any]) -> Result:
    from tests.chaos.schedules.dispatch import play
    from tests.chaos.verdict.result import Result

    began = time.monotonic()
    try:
        return play(environment, order)
    except (KeyboardInterrupt, SystemExit):
        raise
    except BaseException as error:  # pytest's failures are not subclasses of Exception
        result = Result(str(order.get("name", order)), environment.engine, json.dumps(order))
        result.wrong("rig", "".join(traceback.format_exception(error))[-4000:])
        result.seconds = round(time.monotonic() - began, 1)
        return result


def main() -> None:
    # Output of the product or a library must not mix with the results.
    results = os.fdopen(os.dup(1), "w", buffering=1)
    os.dup2(2, 1)
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))
    with prepare_workspace(sys.argv[1]) as environment:
        print(json.dumps("ready"), file=results)
        for line in sys.stdin:
            print(json.dumps(obey(environment, json.loads(line)).as_json()), file=results)


if __name__ == "__main__":
    main()
