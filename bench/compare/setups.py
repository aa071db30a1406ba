"""How each system is set up: its servers on the loopback interface, and the commands of its program."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager
from pathlib import Path

from bench.compare.pages import Login
from bench.compare.programs import task
from bench.compare.rig import Setting, command, plain_environment
from bench.peers import PeerUnusable
from bench.processes import free_port, running
from bench.workspace import DEFAULT_URL, database, sibling_url

MANAGE = Path(__file__).resolve().parent.parent.parent / "manage.py"
SERVER_START_S = 900
PROJECT, USERNAME, PASSWORD = "demo", "compare", "correct-horse-battery-staple"
#: (interpreter, folder for files) -> the system, set up.
SetUp = Callable[[Path, Path], AbstractContextManager[Setting]]


@contextmanager
def dbos(python: Path, folder: Path) -> Iterator[Setting]:
    with _database("compare_dbos") as url:
        program = command(python, "dbos_program.py")
        yield Setting([*program, "serve"], program, plain_environment(COMPARE_DATABASE_URL=url))


@contextmanager
def langgraph(python: Path, folder: Path) -> Iterator[Setting]:
    with _database("compare_langgraph") as url:
        program = command(python, "langgraph_program.py")
        yield Setting([*program, "serve"], program, plain_environment(COMPARE_DATABASE_URL=url))


@contextmanager
def langgraph_server(python: Path, folder: Path) -> Iterator[Setting]:
    port = free_port()
    client = command(python, "langgraph_server_program.py")
    config = folder / "langgraph.json"
    config.write_text(json.dumps({"dependencies": ["."], "graphs": {"agent": f"{client[1]}:graph"}}))
    options = f"dev --host 127.0.0.1 --port {port} --no-browser --no-reload --allow-blocking"
    # It stores its threads below the current directory.
    serve = ["env", "-C", folder, python, "-m", "langgraph_cli", *options.split(), "--config", config]
    environment = plain_environment(
        COMPARE_SERVER=f"http://127.0.0.1:{port}", LANGGRAPH_CLI_NO_ANALYTICS="1", LANGSMITH_TRACING="false"
    )
    # It writes its state every ten seconds. A run that is killed sooner is lost, with its thread.
    yield Setting(serve, client, environment, port=port, is_server=True, killed_after_s=15)


def temporal(variant: str) -> SetUp:
    @contextmanager
    def set_up(python: Path, folder: Path) -> Iterator[Setting]:
        port, page = free_port(), free_port()
        options = f"server start-dev --ip 127.0.0.1 --port {port} --ui-port {page} --log-level error --db-filename"
        server = [python.with_name("temporal"), *options.split(), folder / "temporal.db"]
        environment = plain_environment(COMPARE_TEMPORAL=f"127.0.0.1:{port}", COMPARE_VARIANT=variant)
        with running(server, environment, folder / "server.log", port=port, start_s=SERVER_START_S):
            program = command(python, "temporal_program.py")
            run = f"http://127.0.0.1:{page}/namespaces/default/workflows/run-1"
            yield Setting([*program, "serve"], program, environment, page=lambda state: run)

    return set_up


@contextmanager
def prefect(python: Path, folder: Path) -> Iterator[Setting]:
    port = free_port()
    environment = plain_environment(
        PREFECT_HOME=str(folder / "prefect"),
        PREFECT_API_URL=f"http://127.0.0.1:{port}/api",
        PREFECT_SERVER_ANALYTICS_ENABLED="false",
        PREFECT_FLOWS_HEARTBEAT_FREQUENCY="30",
    )
    server = [python, "-m", "prefect", "server", "start", "--host", "127.0.0.1", "--port", str(port)]
    with running(server, environment, folder / "server.log", port=port, start_s=SERVER_START_S):
        program = command(python, "prefect_program.py")
        site = f"http://127.0.0.1:{port}/runs/flow-run"
        page = lambda state: f"{site}/{state['id']}"  # noqa: E731
        # A run that has sent no heartbeat yet is not found. They are sent every 30 seconds.
        yield Setting([*program, "serve"], program, environment, page=page, killed_after_s=45)


@contextmanager
def restate(python: Path, folder: Path) -> Iterator[Setting]:
    binary = npm_binary(python.parent.parent, "@restatedev/restate-server")
    endpoint, ingress, admin, node = (free_port() for _ in range(4))
    base = plain_environment(
        RESTATE_BASE_DIR=str(folder / "restate"),
        RESTATE_LISTEN_MODE="tcp",
        RESTATE_BIND_IP="127.0.0.1",
        RESTATE_BIND_PORT=str(node),
        RESTATE_INGRESS__BIND_PORT=str(ingress),
        RESTATE_ADMIN__BIND_PORT=str(admin),
    )
    environment = plain_environment(
        COMPARE_PORT=str(endpoint),
        COMPARE_INGRESS=f"http://127.0.0.1:{ingress}",
        COMPARE_ADMIN=f"http://127.0.0.1:{admin}",
    )
    with running([binary, "--no-logo"], base, folder / "server.log", port=admin, start_s=SERVER_START_S):
        program = command(python, "restate_program.py")
        site = f"http://127.0.0.1:{admin}/ui/invocations"
        page = lambda state: f"{site}/{state['id']}"  # noqa: E731
        yield Setting([*program, "serve"], program, environment, port=endpoint, page=page)


def agentops(agent: str) -> SetUp:
    @contextmanager
    def set_up(python: Path, folder: Path) -> Iterator[Setting]:
        port, home = free_port(), folder / "home"
        programs = str(Path(task.__file__).parent)
        site = plain_environment(
            AGENTOPS_HOME=str(home),
            PORT=str(port),
            COMPARE_SITE=f"http://127.0.0.1:{port}",
            AGENTOPS_TOOL_MODULES="site_agent",
            AGENTOPS_PROVIDER_MODULES="site_agent",
            PYTHONPATH=os.pathsep.join([programs, str(MANAGE.parent)]),
            COMPARE_PROJECT=PROJECT,
            COMPARE_VARIANT=agent,
            LOG_LEVEL="WARNING",
        )
        _manage(site, "migrate", "--verbosity", "0")
        # `up` creates this project and fills it with runs, unless it exists.
        _manage(site, "project", "create", PROJECT)
        key = _manage(site, "key", "create", "--project", PROJECT, "--scopes", "read,write,work", "--name", "compare")
        site["COMPARE_KEY"] = key.split()[-1]
        account = ["--noinput", "--username", USERNAME, "--email", "compare@example.org"]
        _manage(site | {"DJANGO_SUPERUSER_PASSWORD": PASSWORD}, "createsuperuser", *account)
        login = Login(f"http://127.0.0.1:{port}/login", USERNAME, PASSWORD)
        shown = {"page": lambda state: f"http://127.0.0.1:{port}/runs/{state['id']}", "login": login}
        up = [python, MANAGE, "up"]
        client = command(python, "agentops_program.py")
        if agent == "site":
            definition = folder / "agent.json"
            tools = [*task.TOOLS, task.PUBLISH]
            parts = {"agent_id": agent, "provider": "scripted", "model": "scripted", "tools": tools}
            definition.write_text(json.dumps(parts))
            _manage(site, "agent", "apply", str(definition), "--project", PROJECT)
            yield Setting(up, client, site, port=port, is_server=True, **shown)
        else:
            with running(up, site, folder / "site.log", port=port, start_s=SERVER_START_S):
                yield Setting([*client, "serve"], client, site, **shown)

    return set_up


def _manage(environment: dict[str, str], *arguments: str) -> str:
    done = subprocess.run(
        [sys.executable, MANAGE, *arguments], env=environment, capture_output=True, text=True, timeout=900, check=False
    )
    if done.returncode:
        raise PeerUnusable(f"{' '.join(arguments[:2])}: {(done.stderr.strip().splitlines() or ['failed'])[-1]}")
    return done.stdout


def npm_binary(folder: Path, package: str) -> Path:
    """Return the executable of a package of npm for this platform. Install the package if it is not there.

    Its own command is a script for Node.js, which does not pass all signals on to the executable.
    """
    if not (found := _binaries(folder, package)):
        options = ["--no-audit", "--no-fund", "--no-package-lock", "--ignore-scripts", "--loglevel", "error"]
        try:
            subprocess.run(
                ["npm", "install", "--prefix", folder, *options, package], check=True, capture_output=True, timeout=900
            )
        except (OSError, subprocess.SubprocessError) as error:
            raise PeerUnusable(f"{package} is not installed ({type(error).__name__})") from error
        found = _binaries(folder, package)
    if not found:
        raise PeerUnusable(f"{package} has no executable for this platform")
    return found[0]


def _binaries(folder: Path, package: str) -> list[Path]:
    return sorted(folder.glob(f"node_modules/{package}-*/bin/{package.rpartition('/')[2]}"))


@contextmanager
def _database(name: str) -> Iterator[str]:
    with database(sibling_url(os.environ.get("BENCH_DATABASE_URL", DEFAULT_URL), name)) as url:
        yield url
