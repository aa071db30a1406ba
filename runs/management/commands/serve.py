"""`agentops serve`: pages, API and streams over HTTP, behind an HTTPS proxy or directly.

Starts uvicorn, in one process or in several that share a port.
"""

from __future__ import annotations

from typing import Any

from django.conf import settings
from django.core.management.base import CommandParser
from django.db import connections
from uvicorn.supervisors import Multiprocess

from agentops.accounts.command_base import AgentopsCommand
from runs import environment
from runs.management.agent.arguments import whole_up_to
from runs.management.site.start_checks import refuse_unusable_schema, warn_of_pools
from runs.management.site.web_server import WebServer, allow_connections, listen, web_config

MAX_PROCESSES = 64
#: Seconds that open requests may take during shutdown.
GRACE_S = 5


class Command(AgentopsCommand):
    logs_runs = True
    help = "Serve pages, API and streams until SIGTERM. Runs are executed by `agentops worker`."

    def add_arguments(self, parser: CommandParser) -> None:
        parser.add_argument("--host", default="127.0.0.1", help="address to listen on (default: %(default)s)")
        parser.add_argument(
            "--port", metavar="N", type=whole_up_to(65535), default=settings.PORT, help="(default: PORT, %(default)s)"
        )
        parser.add_argument(
            "--processes",
            metavar="N",
            type=whole_up_to(MAX_PROCESSES),
            default=1,
            help="number of processes on the port; each has its own limits and connection pool (default: 1)",
        )

    def handle(self, *args: Any, **options: Any) -> None:
        processes: int = options["processes"]
        refuse_unusable_schema()
        environment.hide_secrets()
        site = listen(options["host"], options["port"])
        warn_of_pools()
        connections.close_all()
        allow_connections(settings.AGENTOPS_CONNECTIONS)
        config = web_config(workers=processes, timeout_graceful_shutdown=GRACE_S)
        if processes == 1:
            WebServer(config).run(sockets=[site])
        else:
            site.set_inheritable(True)
            _, config.secrets = environment.for_own_process()
            Multiprocess(config, sockets=[site]).run()
