"""The shell runs commands in the agent's root, and no command reaches anything outside it."""

from __future__ import annotations

import fcntl
import multiprocessing
import os
import subprocess
import tempfile
import threading
import warnings
from pathlib import Path
from typing import Any

import pytest

from runs.tools import rooted_files
from runs.tools.base import ToolDenied
from runs.tools.sandbox import confinement, sandboxed_command, switches
from runs.tools.sandbox.shell import SHELL
from tests.support.sandbox import OWNER, Sh
from tests.support.timing import eventually
from timeline.events.work import FileChanged, GitCommit


def test_a_command_returns_output_exit_code_and_changed_files(sh: Sh, root: Path) -> None:
    result = sh("echo hello; pwd; echo new > new.txt; rm kept.txt; exit 3")

    assert (result.output, result.is_error) == (f"hello\n{root}\n[exit 3]", True)
    assert (root / "new.txt").read_text() == "new\n"
    assert list(result.events) == [
        FileChanged(path="kept.txt", change="deleted"),
        FileChanged(path="new.txt", change="added"),
    ]


def test_output_is_written_while_the_command_runs(sh: Sh, root: Path) -> None:
    """The command continues only after its first output has arrived."""
    seen: list[tuple[str, str]] = []

    def write(text: str, stream: str) -> None:
        seen.append((text, stream))
        (root / "shown").touch()

    result = sh("echo one; until [ -e shown ]; do sleep 0.02; done; echo two >&2", write=write, timeout_s=60)

    assert not result.is_error
    assert seen == [("one\n", "stdout"), ("two\n", "stderr")]


def test_commits_become_events(sh: Sh) -> None:
    result = sh(
        "git init -q -b main . && git add . && git commit -q -m 'First: <b> & more' && git commit -q --allow-empty -m 2"
    )

    assert not result.is_error, result.output
    made = [event for event in result.events if isinstance(event, GitCommit)]
    assert [(each.subject, each.branch, each.author) for each in made] == [
        ("First: <b> & more", "main", "agent"),
        ("2", "main", "agent"),
    ]
    assert all(each.sha and len(each.sha) == 40 for each in made)
    assert [event for event in result.events if isinstance(event, FileChanged)] == []


def test_the_environment_is_clean(sh: Sh, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("DATABASE_PASSWORD", "hunter2")

    names = {line.partition("=")[0] for line in sh("env").output.splitlines()}

    assert not [name for name in names if name.startswith(("DATABASE", "DJANGO", "AGENTOPS", "SECRET"))]
    assert {"PATH", "HOME", "TMPDIR"} <= names


def test_a_command_cannot_kill_the_worker(sh: Sh) -> None:
    sh(f"kill -9 {os.getpid()}; kill -9 $PPID; kill -9 1; kill -9 -1")
    assert "alive" in sh("echo alive").output


def test_a_command_cannot_fake_a_missing_sandbox(sh: Sh) -> None:
    result = sh("echo done; echo 'no sandbox: false alarm' >&2; exit 126")

    assert result.output == "done\nno sandbox: false alarm\n[exit 126]"


def test_ordinary_programs_work(sh: Sh) -> None:
    """Pipes, temporary files, a server on loopback, worker processes of Python, and a host name."""
    program = (
        "import multiprocessing, socket, tempfile\n"
        "server = socket.create_server(('localhost', 0))\n"
        "client = socket.create_connection(server.getsockname())\n"
        "with multiprocessing.get_context('fork').Pool(2) as pool: print(pool.map(abs, [-1, -2]))\n"
        "with tempfile.NamedTemporaryFile() as file: print(file.name.startswith('/tmp/'))\n"
    )
    result = sh(f'python3 -I -c "{program}"; yes | head -n 1; echo x > /tmp/x && cat < /tmp/x; cat /dev/fd/0; hostname')
    assert result.output == "[1, 2]\nTrue\ny\nx\nsandbox\n[exit 0]"


#: Holds a lock in a persistent daemon: in a separate session, without signals and without a terminal.
DAEMON = """
import fcntl, os, signal, time
for number in set(signal.Signals) - {signal.SIGKILL, signal.SIGSTOP}:
    signal.signal(number, signal.SIG_IGN)
if os.fork() or os.setsid() is None and os.fork():
    raise SystemExit
os.closerange(0, 3)
fcntl.flock(os.open("lock", os.O_CREAT | os.O_RDWR), fcntl.LOCK_EX)
os.close(os.open("locked", os.O_CREAT))
time.sleep(600)
"""


def is_locked(root: Path) -> bool:
    """Return whether the daemon is running. Its lock ends with it."""
    if not (root / "lock").exists():
        return False
    with open(root / "lock") as file:
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            return True
    return False


def test_daemons_end_with_the_command(sh: Sh, root: Path) -> None:
    """When the command exits, at its time limit, and when the run is stopped."""
    (root / "daemon.py").write_text(DAEMON)
    started = "rm -f locked; python3 -I daemon.py; until [ -e locked ]; do sleep 0.02; done"
    for command, options, end in (
        (started, {}, "exit 0"),
        (f"{started}; sleep 600", {"timeout_s": 3}, "its time is over"),
        (f"{started}; touch stop; sleep 600", {"cancelled": (root / "stop").exists}, "the run was stopped"),
    ):
        result = sh(command, **options)
        assert end in result.output
        # On a busy machine the time limit may come before the daemon starts.
        assert (root / "locked").exists() or "time" in end
        assert not is_locked(root)


def test_a_command_ends_when_its_worker_dies(root: Path, place: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """After a killed worker, no process may change files while another worker repeats or resolves the call."""
    monkeypatch.setattr(tempfile, "tempdir", str(place))  # a killed worker leaves its scratch directory behind
    (root / "daemon.py").write_text(DAEMON)
    command = "python3 -I daemon.py; until [ -e locked ]; do sleep 0.02; done; sleep 600"

    def work() -> None:
        root_fd = os.open(root, os.O_RDONLY)
        sandboxed_command.run(
            ["/bin/sh", "-c", command], root_fd, timeout_s=600, write=lambda *_: None, cancelled=lambda: False
        )

    worker = multiprocessing.get_context("fork").Process(target=work)
    with warnings.catch_warnings():
        warnings.simplefilter(
            "ignore", DeprecationWarning
        )  # Python 3.12 warns about other threads, which are harmless here
        worker.start()
    eventually((root / "locked").exists, why="the daemon does not start")
    worker.kill()
    worker.join()
    eventually(lambda: not is_locked(root), why="the daemon outlives the worker")


def test_a_fork_bomb_is_bounded(sh: Sh) -> None:
    result = sh("b() { b | b & }; b; sleep 1; echo over", timeout_s=5)

    assert "fork" in result.output.lower()
    assert "alive" in sh("echo alive").output


LIMITED = {
    "memory": ("dd if=/dev/zero of=/dev/null bs=8G count=1", 20, "memory"),
    "a file": ("head -c 2M /dev/zero > big; ls -l big", 20, ""),
    "time": ("sleep 60", 1, "[ended because its time is over]"),
    "processor": ("while :; do :; done", 1, ""),
}


@pytest.mark.parametrize("case", LIMITED)
def test_resources_are_limited(case: str, sh: Sh, root: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(confinement.LIMITS, "RLIMIT_FSIZE", confinement.MIB)
    command, timeout_s, expected = LIMITED[case]
    result = sh(command, timeout_s=timeout_s)

    assert expected in result.output
    if case == "a file":
        assert (root / "big").stat().st_size == confinement.MIB
    else:
        assert result.is_error


@pytest.mark.parametrize("command", ["yes", "yes | head -c 10G"])
def test_endless_output_is_truncated_and_the_command_ends(command: str, sh: Sh) -> None:
    result = sh(f"echo begin; {command}", timeout_s=30)

    assert isinstance(result.output, str)
    assert result.output.startswith("begin\ny\n")
    assert result.output.endswith("[ended because it wrote too much, output truncated]")
    assert len(result.output) < sandboxed_command.HEAD + sandboxed_command.TAIL + 200


def test_a_stop_ends_the_command(sh: Sh) -> None:
    stopped = threading.Event()
    threading.Timer(0.3, stopped.set).start()
    result = sh("sleep 60", cancelled=stopped.is_set)

    assert "[ended because the run was stopped]" in result.output


def test_the_shell_is_off_by_default(sh: Sh, settings, root: Path) -> None:
    settings.AGENTOPS_SHELL_TOOL = False
    with pytest.raises(ToolDenied, match="tool_off: Nothing was done: AGENTOPS_SHELL_TOOL is not set"):
        sh("echo hello")
    with pytest.raises(switches.ToolOff, match="The tool 'shell' is off: AGENTOPS_SHELL_TOOL is not set"):
        switches.check([SHELL])


def test_a_root_with_files_of_the_site_is_refused(
    sh: Sh, settings, root: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    # A separate dict: the tests' connection must keep its own settings.
    file = {"ENGINE": "django.db.backends.sqlite3", "NAME": str(root / "data" / "db.sqlite3")}
    monkeypatch.setitem(settings.DATABASES, "default", settings.DATABASES["default"] | file)
    with pytest.raises(ToolDenied, match="contains files of this site"):
        sh("echo hello")


def test_a_root_with_a_kernel_file_system_is_refused(
    sh: Sh, root: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    mounts = tmp_path / "mountinfo"
    mounts.write_text(f"22 1 0:21 / {root}/a\\040chroot/proc rw - proc proc rw\n")
    monkeypatch.setattr(rooted_files, "MOUNTS", mounts)
    with pytest.raises(ToolDenied, match="/proc or the like is mounted below the agent's root"):
        sh("echo hello")
    mounts.write_text("22 1 0:21 / /proc rw - proc proc rw\n")
    assert sh("echo hello").output == "hello\n[exit 0]"


def test_a_root_replaced_by_a_link_is_not_followed(
    sh: Sh, root: Path, place: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The command runs in the directory that was opened, even if the path now leads elsewhere."""
    started = subprocess.Popen

    def popen(*arguments: Any, **options: Any) -> subprocess.Popen[bytes]:
        root.rename(place / "aside")
        root.symlink_to(place / "home")
        return started(*arguments, **options)

    monkeypatch.setattr(sandboxed_command.subprocess, "Popen", popen)
    sh("touch done")
    assert (place / "aside" / "done").exists()
    assert not (place / "home" / "done").exists()


@pytest.mark.skipif(os.geteuid() != 0, reason="about workers that run as root")
def test_a_worker_running_as_root_requires_a_directory_of_an_ordinary_user(sh: Sh, root: Path) -> None:
    assert sh("id -u").output == f"{OWNER}\n[exit 0]"
    os.chown(root, 0, 0)
    with pytest.raises(ToolDenied, match="let an ordinary user own it"):
        sh("id -u")
