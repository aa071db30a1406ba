"""Startup: the CPU time of commands, the time to the first page of `up`, and the cost of an idle site."""

from __future__ import annotations

import os
import resource
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Sequence
from contextlib import closing
from pathlib import Path
from urllib.error import URLError
from urllib.request import urlopen

from bench import report
from bench.report import Row, heading, show
from bench.stacks import embedded, scaled
from bench.workspace import Options, Workspace

BIN = Path(sys.executable).parent
#: Limits in seconds of processor time; for `up`, of wall time.
LIMITS = {"agentops --help": 0.4, "agentops run --help": 1.0, "agentops run ls": 1.0}
FIRST_PAGE_S = 4.0
IDLE_MIB, SCALED_MIB = 200, 500
#: Maximum processor time of an idle site in a minute, in seconds.
IDLE_CPU_S = 1.0
SETTLED_S = 20.0
POLL_S = 0.01


def run(workspace: Workspace, options: Options) -> None:
    rounds = 2 if options.quick else 7
    home = workspace.folder / "home"
    env = _environment(home)
    first = _first_page_s(env)
    heading("startup: CPU time of commands, s; start of the site, s")
    for command, limit in LIMITS.items():
        product_s = _cpu_s([str(BIN / "agentops"), *command.split()[1:]], env, rounds)
        show(Row(command, f"{product_s:.3f}", f"limit {limit:.1f}", product_s / limit, at_most=1.0))
    again = report.mid([_first_page_s(env) for _ in range(rounds)])
    show(
        Row("start of `up` to the first page", f"{again:.2f}", f"limit {FIRST_PAGE_S}", again / FIRST_PAGE_S, at_most=1)
    )
    show(Row("the same with an empty AGENTOPS_HOME, creating the demo", f"{first:.2f}"))
    _show_idle(workspace, SETTLED_S / 4 if options.quick else SETTLED_S)


def _show_idle(workspace: Workspace, seconds: float) -> None:
    """Print memory and CPU time per minute of a site with an agent and without runs, and memory of a larger one."""
    with embedded(workspace) as stack:
        time.sleep(seconds)
        mib, before = stack.rss_mib(), stack.programs[0].cpu_s()
        time.sleep(seconds)
        cpu = (stack.programs[0].cpu_s() - before) * 60 / seconds
    show(Row("memory of an idle `up`, MiB", f"{mib:.0f}", f"limit {IDLE_MIB}", mib / IDLE_MIB, at_most=1))
    show(Row("its CPU time per minute, s", f"{cpu:.2f}", f"limit {IDLE_CPU_S:g}", cpu / IDLE_CPU_S, at_most=1))
    with scaled(workspace) as stack:
        time.sleep(seconds)
        mib = stack.rss_mib()
    what, limit = "memory of idle web, worker and clock, MiB", f"limit {SCALED_MIB}"
    show(Row(what, f"{mib:.0f}", limit, mib / SCALED_MIB, at_most=1))


def _environment(home: Path) -> dict[str, str]:
    inherited = {name: value for name, value in os.environ.items() if name in ("PATH", "HOME", "LANG")}
    with closing(socket.socket()) as free:
        free.bind(("127.0.0.1", 0))
        return {**inherited, "AGENTOPS_HOME": str(home), "PORT": str(free.getsockname()[1])}


def _cpu_s(command: Sequence[str], env: dict[str, str], rounds: int) -> float:
    """Return the median CPU time of the process in seconds over `rounds`, after one round that fills the caches."""
    return report.mid([_measure_once(command, env) for _ in range(rounds + 1)][1:])


def _measure_once(command: Sequence[str], env: dict[str, str]) -> float:
    before = resource.getrusage(resource.RUSAGE_CHILDREN)
    subprocess.run(command, env=env, check=True, stdout=subprocess.DEVNULL, timeout=120)
    after = resource.getrusage(resource.RUSAGE_CHILDREN)
    return after.ru_utime - before.ru_utime + after.ru_stime - before.ru_stime


def _first_page_s(env: dict[str, str]) -> float:
    """Return the seconds from the start of the process until the login page is loaded."""
    began = time.monotonic()
    site = subprocess.Popen([BIN / "agentops", "up"], env=env, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    try:
        while True:
            try:
                with urlopen(f"http://127.0.0.1:{env['PORT']}/login", timeout=60) as page:
                    page.read()
                return time.monotonic() - began
            except (URLError, ConnectionError):
                if site.poll() is not None or time.monotonic() - began > 120:
                    raise
                time.sleep(POLL_S)
    finally:
        site.send_signal(signal.SIGINT)
        site.wait(60)
