"""The shell runs what it is asked to, in the agent's root, and nothing of what it tries reaches further."""

from __future__ import annotations

import contextlib
import os
import shutil
import socket
import subprocess
import tempfile
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from runs.tools.base import ToolContext, ToolDenied, ToolResult
from runs.tools.sandbox import sandboxed_command, switches
from runs.tools.sandbox.shell import SHELL
from timeline.events.work import FileChanged, GitCommit

#: A user that nothing else on the machine runs as; root's commands run as the owner of the root.
OWNER = 54_321
Sh = Callable[..., ToolResult]


@pytest.fixture
def place() -> Iterator[Path]:
    """A directory whose parents everybody may enter; pytest's own are private."""
    directory = Path(tempfile.mkdtemp(prefix="shell-test-"))
    directory.chmod(0o755)
    yield directory
    shutil.rmtree(directory)


@pytest.fixture
def root(place: Path, settings) -> Path:
    root = place / "root"
    root.mkdir()
    (root / "kept.txt").write_text("kept\n")
    (place / "secret.txt").write_text("outside the root")
    (place / "db.sqlite3").write_text("rows")
    (place / "db.sqlite3").chmod(0o666)
    # The permissions of the files would allow everything: what refuses is the sandbox.
    (place / "secret.txt").chmod(0o666)
    place.chmod(0o777)
    if os.geteuid() == 0:
        for path in (root, root / "kept.txt"):
            os.chown(path, OWNER, OWNER)
    settings.AGENTOPS_TOOL_ROOTS = [str(root)]
    settings.AGENTOPS_SHELL_TOOL = True
    return root


@pytest.fixture
def sh(make_ctx, root: Path) -> Sh:
    def run(command: str, timeout_s: int = 20, **context: Any) -> ToolResult:
        ctx: ToolContext = make_ctx(settings={"root": str(root)}, **context)
        return SHELL.run(ctx, {"command": command, "timeout_s": timeout_s})

    return run


def test_it_works(sh: Sh, root: Path) -> None:
    result = sh("echo hello; pwd; echo new > new.txt; rm kept.txt; exit 3")

    assert (result.output, result.is_error) == (f"hello\n{root}\n[exit 3]", True)
    assert (root / "new.txt").read_text() == "new\n"
    assert list(result.events) == [
        FileChanged(path="kept.txt", change="deleted"), FileChanged(path="new.txt", change="added"),
    ]  # fmt: skip


def test_its_output_is_shown_while_it_runs(sh: Sh, root: Path) -> None:
    """The command goes on when what it has said was shown."""
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
        ("First: <b> & more", "main", "agent"), ("2", "main", "agent"),
    ]  # fmt: skip
    assert all(each.sha and len(each.sha) == 40 for each in made)
    assert [event for event in result.events if isinstance(event, FileChanged)] == []


ESCAPES = {
    "an absolute path": "cat {place}/secret.txt",
    "the parent": "cat ../secret.txt",
    "a symbolic link": "ln -s {place}/secret.txt link; cat link",
    "a hard link": "ln {place}/secret.txt hard && cat hard",
    "writing outside": "echo x > {place}/secret.txt",
    "truncating outside": ": > {place}/secret.txt",
    "a new file outside": "touch {place}/new.txt",
    "moving a file out": "mv kept.txt {place}/moved.txt",
    "secrets of the machine": "cat /etc/shadow",
    "the home of root": "ls /root",
    "the environment of the worker": "cat /proc/$PPID/environ /proc/1/environ /proc/self/environ",
    "another temporary directory": "ls /tmp",
    "devices": "cat /dev/mem; echo x > /dev/kmsg",
    "the terminal": "echo x > /dev/tty || cat < /dev/tty",
    "the metadata service": "curl -s -m 2 http://169.254.169.254/ || "
    "python3 -I -c \"import socket; socket.create_connection(('169.254.169.254', 80), 2)\"",
    "the database of the site": "printf x | dd of={place}/db.sqlite3 conv=notrunc",
}


@pytest.mark.parametrize("case", ESCAPES)
def test_nothing_outside_is_reached(case: str, sh: Sh, place: Path) -> None:
    result = sh(ESCAPES[case].format(place=place))

    assert result.is_error, result.output
    assert "outside the root" not in result.output
    assert (place / "secret.txt").read_text() == "outside the root"
    assert (place / "db.sqlite3").read_text() == "rows"
    assert sorted(each.name for each in place.iterdir()) == ["db.sqlite3", "root", "secret.txt"]
    assert (place / "root" / "kept.txt").exists()


def test_landlock_alone_confines_a_command(
    sh: Sh, place: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As in a container that makes no namespaces: files, TCP and signals are out of reach."""
    source = sandboxed_command.LAUNCHER.read_text()
    assert source.count("LIBC.unshare(") == 1
    copy = tmp_path / "launcher.py"
    copy.write_text(source.replace("LIBC.unshare(", "abs("))
    monkeypatch.setattr(sandboxed_command, "LAUNCHER", copy)

    for case in ("an absolute path", "the parent", "a symbolic link", "writing outside", "a new file outside"):
        assert sh(ESCAPES[case].format(place=place)).is_error
    assert (place / "secret.txt").read_text() == "outside the root"
    victim = subprocess.Popen(["sleep", "60"], user=OWNER if os.geteuid() == 0 else None)
    try:
        assert "not permitted" in sh(f"kill -9 {victim.pid}").output
        assert victim.poll() is None
    finally:
        victim.kill()
        victim.wait()
    with socket.create_server(("127.0.0.1", 0)) as tcp:
        assert "reached" not in sh(_connecting(tcp.getsockname()[1])).output


def _connecting(port: int) -> str:
    return f"python3 -I -c \"import socket; socket.create_connection(('127.0.0.1', {port}), 2); print('reached')\""


def test_there_is_no_network(sh: Sh, place: Path, root: Path) -> None:
    """Neither TCP nor UDP on loopback, nor a socket in a directory outside."""
    with contextlib.ExitStack() as stack:
        tcp = stack.enter_context(socket.create_server(("127.0.0.1", 0)))
        udp = stack.enter_context(socket.socket(socket.AF_INET, socket.SOCK_DGRAM))
        udp.bind(("127.0.0.1", 0))
        udp.settimeout(0.2)
        program = (
            "import socket\n"
            f"s = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)\n"
            f"try: s.sendto(b'x', ('127.0.0.1', {udp.getsockname()[1]}))\n"
            "except OSError as e: print('udp', e)\n"
            f"try: socket.create_connection(('127.0.0.1', {tcp.getsockname()[1]}), 2); print('reached')\n"
            "except OSError as e: print('tcp', e)\n"
        )
        result = sh(f'/usr/bin/python3 -I -c "{program}" || python3 -c "{program}"')
        assert "tcp" in result.output
        assert "reached" not in result.output
        with pytest.raises(TimeoutError):
            udp.recv(1)


def test_the_environment_is_clean(sh: Sh, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("DATABASE_PASSWORD", "hunter2")

    names = {line.partition("=")[0] for line in sh("env").output.splitlines()}

    assert not [name for name in names if name.startswith(("DATABASE", "DJANGO", "AGENTOPS", "SECRET"))]
    assert {"PATH", "HOME", "TMPDIR"} <= names


def test_the_worker_cannot_be_killed(sh: Sh) -> None:
    sh(f"kill -9 {os.getpid()}; kill -9 $PPID; kill -9 -1")
    assert "alive" in sh("echo alive").output


def test_processes_in_the_background_are_ended(sh: Sh, root: Path) -> None:
    """Also those that left their group, and hold the pipe open."""
    loop = "while :; do date +%N > {}; sleep 0.1; done"
    both = "until [ -s alive ] && [ -s too ]; do sleep 0.02; done"
    result = sh(f"({loop.format('alive')}) & setsid sh -c '{loop.format('too')}' & {both}", timeout_s=60)

    assert not result.is_error
    before = [(root / name).read_text() for name in ("alive", "too")]
    time.sleep(0.4)
    assert [(root / name).read_text() for name in ("alive", "too")] == before


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
def test_what_it_uses_is_limited(case: str, sh: Sh, root: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sandboxed_command.LIMITS, "RLIMIT_FSIZE", sandboxed_command.MIB)
    command, timeout_s, said = LIMITED[case]
    result = sh(command, timeout_s=timeout_s)

    assert said in result.output
    if case == "a file":
        assert (root / "big").stat().st_size == sandboxed_command.MIB
    else:
        assert result.is_error


@pytest.mark.parametrize("command", ["yes", "yes | head -c 10G"])
def test_endless_output_is_cut_and_ended(command: str, sh: Sh) -> None:
    result = sh(f"echo begin; {command}", timeout_s=30)

    assert isinstance(result.output, str)
    assert result.output.startswith("begin\ny\n")
    assert result.output.endswith("[ended because it wrote too much, output truncated]")
    assert len(result.output) < sandboxed_command.HEAD + sandboxed_command.TAIL + 200


def test_a_stop_ends_it(sh: Sh) -> None:
    stopped = threading.Event()
    threading.Timer(0.3, stopped.set).start()
    result = sh("sleep 60", cancelled=stopped.is_set)

    assert "[ended because the run was stopped]" in result.output


def test_it_is_off_by_default(sh: Sh, settings, root: Path) -> None:
    settings.AGENTOPS_SHELL_TOOL = False
    with pytest.raises(ToolDenied, match="tool_off: Nothing was done: AGENTOPS_SHELL_TOOL is not set"):
        sh("echo hello")
    with pytest.raises(switches.ToolOff, match="The tool 'shell' is off: AGENTOPS_SHELL_TOOL is not set"):
        switches.check([SHELL])


def test_a_root_with_files_of_the_site_is_refused(
    sh: Sh, settings, root: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    # A mapping of its own: the connection of the tests keeps the one that stands here.
    file = {"ENGINE": "django.db.backends.sqlite3", "NAME": str(root / "data" / "db.sqlite3")}
    monkeypatch.setitem(settings.DATABASES, "default", settings.DATABASES["default"] | file)
    with pytest.raises(ToolDenied, match="contains files of this site"):
        sh("echo hello")


@pytest.mark.skipif(os.geteuid() != 0, reason="about workers that run as root")
def test_root_needs_a_root_of_somebody_else(sh: Sh, root: Path) -> None:
    assert sh("id -u").output == f"{OWNER}\n[exit 0]"
    os.chown(root, 0, 0)
    with pytest.raises(ToolDenied, match="let it belong to an ordinary user"):
        sh("id -u")
