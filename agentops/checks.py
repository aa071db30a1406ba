"""System checks in addition to Django's. Some run only with `check --deploy` or `check --database default`."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from importlib.metadata import entry_points
from typing import Any
from urllib.parse import urlsplit

from django.conf import settings
from django.core.checks import CheckMessage, Error, Tags, register
from django.core.checks import Warning as CheckWarning
from django.db import connections
from django.utils.module_loading import import_string

from agentops.base.backing_services import SERIALIZER

REDIS_CACHE = "django.core.cache.backends.redis.RedisCache"
#: Caches that unpickle values too, but values that only this process can write.
CACHES_OF_THE_PROCESS = (
    "django.core.cache.backends.dummy.DummyCache",
    "django.core.cache.backends.locmem.LocMemCache",
)
LOOPBACK = {"localhost", "127.0.0.1", "::1"}
#: PostgreSQL settings that have to be on, and the reasons.
DURABLE = {"fsync": "a power failure loses committed data", "full_page_writes": "a power failure may corrupt pages"}


def _warning(check_id: str, text: str, hint: str) -> list[CheckMessage]:
    return [CheckWarning(text, hint=hint, id=check_id)]


@register(deploy=True)
def redis_is_not_open(app_configs: Any, **_: Any) -> list[CheckMessage]:
    """Warn about a Redis without a password: any client could flood workers with messages."""
    parts = urlsplit(settings.REDIS_URL)
    if parts.hostname in {None, *LOOPBACK} or parts.password:
        return []
    return _warning(
        "agentops.W001",
        "REDIS_URL has no password, and the server is on another machine.",
        "Give Redis a password (requirepass or an ACL), and name it in the URL.",
    )


@register()
def cache_reads_no_code(app_configs: Any, **_: Any) -> list[CheckMessage]:
    """Report caches that other programs can write to and whose values are unpickled, which can execute code."""
    return [
        Error(
            f"The cache {name!r} ({config.get('BACKEND')}) may run code that it reads.",
            hint=f"Use Django's RedisCache with OPTIONS['serializer'] = {SERIALIZER!r}.",
            id="agentops.E007",
        )
        for name, config in settings.CACHES.items()
        if not _is_safe_cache(config)
    ]


def _is_safe_cache(config: Mapping[str, Any]) -> bool:
    if config.get("BACKEND") in CACHES_OF_THE_PROCESS:
        return True
    return config.get("BACKEND") == REDIS_CACHE and config.get("OPTIONS", {}).get("serializer") == SERIALIZER


@register()
def messages_and_sessions_are_no_code(app_configs: Any, **_: Any) -> list[CheckMessage]:
    """Report serializers other than JSON for Celery's messages and for sessions."""
    serializers = {
        "CELERY_ACCEPT_CONTENT": (settings.CELERY_ACCEPT_CONTENT, ["json"]),
        "CELERY_TASK_SERIALIZER": (settings.CELERY_TASK_SERIALIZER, "json"),
        "SESSION_SERIALIZER": (settings.SESSION_SERIALIZER, "django.contrib.sessions.serializers.JSONSerializer"),
    }
    return [
        Error(f"{name} is {value!r}, not {safe!r}.", hint="Remove the setting.", id="agentops.E008")
        for name, (value, safe) in serializers.items()
        if value != safe
    ]


@register(deploy=True)
def many_processes_share_a_server(app_configs: Any, **_: Any) -> list[CheckMessage]:
    """Warn about SQLite."""
    if connections["default"].vendor != "sqlite":
        return []
    return _warning(
        "agentops.W002",
        "The database is SQLite, which is for one machine and one `agentops up`.",
        "Set DATABASE_URL to a PostgreSQL server to use several processes.",
    )


@register(deploy=True)
def mail_password_is_not_in_the_clear(app_configs: Any, **_: Any) -> list[CheckMessage]:
    """Warn if the password of the mail server is sent to another machine without encryption."""
    encrypted = settings.EMAIL_USE_TLS or settings.EMAIL_USE_SSL
    if not settings.EMAIL_HOST_PASSWORD or encrypted or settings.EMAIL_HOST in LOOPBACK:
        return []
    return _warning(
        "agentops.W003",
        "EMAIL_URL has a password, and sends it over the network unencrypted.",
        "Use smtp+tls:// (STARTTLS) or smtps://, whichever your mail server supports.",
    )


@register(deploy=True)
def tests_cannot_end_this_process(app_configs: Any, **_: Any) -> list[CheckMessage]:
    """Report the setting of the test suite."""
    if not settings.AGENTOPS_TESTING:
        return []
    return [Error("AGENTOPS_TESTING is set: other programs can end this process.", id="agentops.E003")]


@register()
def tools_can_be_loaded(app_configs: Any, **_: Any) -> list[CheckMessage]:
    """Warn about tools of other packages that cannot be used. Agents that name them cannot start."""
    registry = import_string("runs.tools.catalogue.TOOLS")
    hint = "Correct or uninstall it; `agentops tools` lists what is left."
    return [CheckWarning(f"Tools are missing. {fault}", hint=hint, id="agentops.W005") for fault in registry.faults()]


@register()
def hooks_can_be_loaded(app_configs: Any, **_: Any) -> list[CheckMessage]:
    """Warn about hooks of other packages that cannot be used. Agents that name them cannot start."""
    catalogue = import_string("runs.hooks.hook_catalogue.HOOKS")
    messages: list[CheckMessage] = [
        CheckWarning(f"Hooks are missing. {fault}", hint="Correct or uninstall it.", id="agentops.W006")
        for fault in catalogue.faults()
    ]
    unknown = sorted(set(settings.AGENTOPS_HOOKS) - set(catalogue.names()))
    hint = "No run can start. Install the package of the hook, or correct the name."
    messages += [
        Error(f"AGENTOPS_HOOKS names {name!r}, which is no hook.", hint=hint, id="agentops.E006") for name in unknown
    ]
    return messages


@register()
def other_parts_can_be_loaded(app_configs: Any, **_: Any) -> list[CheckMessage]:
    """Warn about providers, importers, sinks and agents of other packages that cannot be used."""
    parts = {
        "runs.providers.base.PROVIDERS": ("providers", settings.AGENTOPS_PROVIDER_MODULES),
        "runs.external.importers.formats.IMPORTERS": ("importers", settings.AGENTOPS_IMPORTER_MODULES),
        "runs.telemetry.sink_targets.KINDS": ("sinks", settings.AGENTOPS_TELEMETRY.modules),
        "runs.worker.packaged.catalogue.AGENTS": ("agents", settings.AGENTOPS_AGENT_MODULES),
    }
    return [
        CheckWarning(f"{kind.capitalize()} are missing. {fault}", hint="Correct or uninstall it.", id="agentops.W007")
        for catalogue, (kind, modules) in parts.items()
        # The catalogues take time to import, and are only needed if a package adds something.
        if modules or entry_points(group=f"agentops.{kind}")
        for fault in import_string(catalogue).faults()
    ]


@register()
def commands_have_a_sandbox(app_configs: Any, **_: Any) -> list[CheckMessage]:
    """Warn about a machine on which the tool `shell` is allowed, but cannot run commands."""
    if not settings.AGENTOPS_SHELL_TOOL:
        return []
    reason = import_string("runs.tools.sandbox.switches.why_unavailable")()
    hint = "See docs/guides/tools.md#shell for what the sandbox needs, or unset AGENTOPS_SHELL_TOOL."
    return [CheckWarning(f"The tool 'shell' is off. {reason}", hint=hint, id="agentops.W009")] if reason else []


@register(Tags.database)
def commits_are_durable(app_configs: Any, databases: Sequence[str] | None = None, **_: Any) -> list[CheckMessage]:
    """Report settings of PostgreSQL with which a commit is not written to disk. All guarantees depend on that."""
    messages: list[CheckMessage] = []
    for alias in databases or []:
        connection = connections[alias]
        if connection.vendor == "postgresql":
            with connection.cursor() as cursor:
                for name, loss in DURABLE.items():
                    cursor.execute("SELECT current_setting(%s)", [name])
                    if cursor.fetchone()[0] != "on":
                        messages.append(Error(f"PostgreSQL's {name} is off: {loss}.", id="agentops.E004"))
    return messages


@register(Tags.database)
def pools_fit_the_server(app_configs: Any, databases: Sequence[str] | None = None, **_: Any) -> list[CheckMessage]:
    """Warn if all connection pools together may open more connections than PostgreSQL accepts."""
    pool = settings.DATABASES["default"].get("OPTIONS", {}).get("pool")
    if not pool or "default" not in (databases or []):
        return []
    with connections["default"].cursor() as cursor:
        cursor.execute(
            "SELECT sum(setting::int) FILTER (WHERE name = 'max_connections')"
            " - sum(setting::int) FILTER (WHERE name <> 'max_connections') FROM pg_settings WHERE name IN"
            " ('max_connections', 'superuser_reserved_connections', 'reserved_connections')"
        )
        available = int(cursor.fetchone()[0])
    needed = pool["max_size"] * settings.AGENTOPS_DB_PROCESSES
    if needed <= available:
        return []
    return _warning(
        "agentops.W004",
        f"PostgreSQL has {available} connections, and agentops may open {needed}:"
        f" AGENTOPS_DB_POOL={pool['max_size']} in each of AGENTOPS_DB_PROCESSES={settings.AGENTOPS_DB_PROCESSES}.",
        "Raise PostgreSQL's max_connections, or lower AGENTOPS_DB_POOL.",
    )


@register(Tags.database)
def searches_have_trigrams(app_configs: Any, databases: Sequence[str] | None = None, **_: Any) -> list[CheckMessage]:
    """Warn if PostgreSQL lacks the extension for the index of texts."""
    has_trigrams = import_string("runs.queries.searching.text_index.has_trigrams")
    if "default" not in (databases or []) or has_trigrams() is not False:
        return []
    return _warning(
        "agentops.W008",
        "PostgreSQL's extension pg_trgm was missing at the migration: searches for rare texts are slow.",
        "As a superuser of the database: CREATE EXTENSION pg_trgm. Then: agentops search_index trigrams",
    )
