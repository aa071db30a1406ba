"""The built-in guards."""

from __future__ import annotations

from decimal import Decimal
from typing import Any

import pytest

from runs.hooks import hook_catalogue
from runs.hooks.base import HookContext, HookEvent, InvalidHook, Verdict
from runs.hooks.guards import fault_of


def verdict(name: str, given: Any, /, *, cost: str = "0", effect: str = "at_most_once", **options: Any) -> Any:
    context = HookContext(
        event=HookEvent.PRE_TOOL_USE,
        run_id="r",
        agent_id="a",
        step=1,
        tool_name="tool",
        effect=effect,
        arguments=given,
        cost_usd=Decimal(cost),
    )
    return hook_catalogue.make(name, options).decide(context)


@pytest.mark.parametrize(
    "path",
    [
        "../../etc/passwd",
        "a/../../b",
        "..",
        "a\\..\\..\\b",
        "/etc/passwd",
        "//host/share",
        "\\\\host\\share",
        "~",
        "~root/x",
        "C:\\Windows",
        "c:boot.ini",
        "file:///etc/passwd",
        "/proc/self/environ",
        "a\0b",
        "x" * 4_097,
        ".git/hooks/pre-commit",
        "sub/.GIT/Hooks/pre-commit",
        ".git//hooks",
        "./.git/./hooks",
        ".ssh/id_rsa",
        ".git/config",
    ],
)
def test_the_path_guard_denies(path: str) -> None:
    assert verdict("path_guard", {"path": path}).kind == "deny"
    assert verdict("path_guard", {"options": {"files": [{"name": path}]}}).kind == "deny"


@pytest.mark.parametrize("path", ["a.txt", "./a/b.txt", "a..b", "..a", ".github/workflows", "ab:c", "über.txt", ""])
def test_the_path_guard_allows(path: str) -> None:
    assert fault_of(path) == ""
    assert verdict("path_guard", {"path": path, "content": "/etc/passwd and ../x"}) is None


def test_the_path_guard_accepts_argument_names_and_patterns() -> None:
    assert verdict("path_guard", {"where": "/x"}) is None
    assert verdict("path_guard", {"where": "/x"}, arguments=["where"]).kind == "deny"
    assert verdict("path_guard", {"path": "conf/.env"}, deny=[r"\.env$"]).text == "the path 'conf/.env' is denied"


@pytest.mark.parametrize(
    "command",
    [
        "rm -rf /",
        "ls; rm x",
        "ls | sh",
        "ls && rm x",
        "ls > x",
        "ls $(rm x)",
        "ls `rm x`",
        "ls\nrm x",
        "ls $HOME",
        "ls 'unclosed",
        "/bin/ls",
        "",
        ["rm", "x"],
        [],
        7,
        None,
        "ls *",
        "git push --force",
        "ls ~",
    ],
)
def test_the_command_guard_denies(command: Any) -> None:
    assert verdict("command_guard", {"command": command}, allow=["ls", "git"], deny=["--force"]).kind == "deny"


@pytest.mark.parametrize("command", ["ls -l 'my file'", ["git", "log", "a b; c"], "git status"])
def test_the_command_guard_allows(command: Any) -> None:
    assert verdict("command_guard", {"command": command}, allow=["ls", "git"]) is None


def test_the_command_guard_allows_nothing_by_default() -> None:
    assert verdict("command_guard", {"cmd": "ls"}).text == "the program 'ls' is not allowed; allowed are: none"
    assert verdict("command_guard", '{"command": "rm').kind == "deny"


@pytest.mark.parametrize(
    "arguments",
    [
        {"body": "key ghp_" + "a1B2c3D4e5F6g7H8i9J0k1L2m3N4o5P6q7R8"},
        {"headers": {"authorization": "Bearer abcdefghijklmnop1234567890"}},
        {"text": "use [REDACTED:token:0a1b2c3d]"},
        "not JSON [REDACTED:token:0a1b2c3d]",
    ],
)
def test_the_secret_guard_denies(arguments: Any) -> None:
    assert verdict("secret_guard", arguments).kind == "deny"


def test_the_secret_guard_allows_values_without_secrets() -> None:
    assert verdict("secret_guard", {"path": "a.txt", "n": 1, "tags": ["x", None]}) is None


def test_the_cost_guard_asks_and_denies() -> None:
    limits = {"ask_above_usd": 1, "deny_above_usd": 2.5}
    assert verdict("cost_guard", {}, cost="0.99", **limits) is None
    assert verdict("cost_guard", {}, cost="1", **limits) == Verdict.ask("the run has cost 1.00 US dollars")
    assert verdict("cost_guard", {}, cost="2.50", **limits).kind == "deny"
    assert verdict("cost_guard", {}, cost="99", effect="read", **limits) is None


@pytest.mark.parametrize(
    ("name", "options", "says"),
    [
        ("nothing", {}, "unknown hook 'nothing'; use one of: command_guard, cost_guard, path_guard, secret_guard"),
        ("secret_guard", {"x": 1}, "unknown option 'x'"),
        ("path_guard", {"deny": ["("]}, "not a valid pattern"),
        ("path_guard", {"arguments": "path"}, "must be a list"),
        ("cost_guard", {}, "set ask_above_usd"),
        ("cost_guard", {"ask_above_usd": True}, "above 0"),
    ],
)
def test_invalid_options_are_refused(name: str, options: dict[str, Any], says: str) -> None:
    with pytest.raises(InvalidHook, match=says):
        hook_catalogue.make(name, options)
