"""All settings. Each is declared once: its variable and description, read by a strict reader (agentops/base/env.py).

docs/reference/settings.md is written from this file: `# ---` begins a group, and `#:` describes the variable below it.
An invalid value ends the start with exit code 78. agentops/site/fixed_settings.py has what no variable changes.
"""

from __future__ import annotations

import os
import secrets
from pathlib import Path
from typing import Any

from agentops.base import backing_services
from agentops.base.backing_services import FIRST, broker_options, cache_config, database_config
from agentops.base.env import BadSetting, Reader
from agentops.site.computed_settings import (
    PlannedTask,
    log_level,
    logging_config,
    openid_providers,
    routes_of,
    schedule_of,
    upkeep,
)
from agentops.site.fixed_settings import *  # noqa: F403
from runs.changes import edit_tools

env = Reader()

# --- Site and addresses ----------------------------------------------------------------------------------------------
#: Directory of the SQLite database and the secret key. It is created if missing. `agentops up` makes it private (mode
#: 0700).
AGENTOPS_HOME = Path(env.text("AGENTOPS_HOME", ".agentops")).absolute()
#: Project of commands without `--project`, by its slug or its ID. Without it: the one that `agentops project use` has
#: stored in `AGENTOPS_HOME`.
AGENTOPS_PROJECT = env.text("AGENTOPS_PROJECT")
#: Port on 127.0.0.1 that `agentops up` listens on.
PORT = env.integer("PORT", 8000, low=1, high=65535)
#: Host names that the site answers to. `*` is accepted only together with `DEBUG`.
ALLOWED_HOSTS = env.names("ALLOWED_HOSTS", ["localhost", "127.0.0.1", "[::1]"])
#: Signing key of sessions, forms and cursors: at least 50 characters, the same for all processes. Without it, a key is
#: created once and kept in `AGENTOPS_HOME`.
SECRET_KEY = env.text("SECRET_KEY", secret=True)
#: Keys of at least 32 characters, with commas between them, that encrypt the secrets of redaction rules. The first one
#: encrypts; all of them and a key derived from `SECRET_KEY` decrypt. Without it, the derived key encrypts.
AGENTOPS_ENCRYPTION_KEYS = env.secrets("AGENTOPS_ENCRYPTION_KEYS", at_least=32)
#: Address under which people open the site, such as `https://agentops.example.org`. Links in e-mails begin with it.
#: Required with `EMAIL_URL`.
AGENTOPS_BASE_URL = env.site("AGENTOPS_BASE_URL")

# --- Database and Redis ----------------------------------------------------------------------------------------------
#: `postgresql://USER:PASSWORD@HOST/NAME` or `sqlite:///PATH`. Without it: a SQLite file in `AGENTOPS_HOME`.
_database = env.database("DATABASE_URL")
#: PostgreSQL: the largest number of connections of one process, at least 7 more than `AGENTOPS_CONCURRENCY`. 0 disables
#: the pool and opens a connection for each use.
AGENTOPS_DB_POOL = env.integer("AGENTOPS_DB_POOL", 20, low=0, high=500)
#: PostgreSQL: number of processes that have such a pool. Each process warns at its start if all pools together need
#: more connections than the server allows.
AGENTOPS_DB_PROCESSES = env.integer("AGENTOPS_DB_PROCESSES", 1, low=1, high=10_000)
#: PostgreSQL: `application_name` of the connections of this process.
AGENTOPS_PROCESS_NAME = env.text("AGENTOPS_PROCESS_NAME", "agentops")
#: `redis://…`, `rediss://…` or `unix://…`. Wakes workers and streams at once and counts requests for all processes
#: together. Without it, workers and streams poll the database.
REDIS_URL = env.redis("REDIS_URL")
#: Workers obey all commands of Celery's remote control, such as `celery control shutdown`. By default they only
#: answer the commands that inspect: `active`, `active_queues`, `clock`, `ping`, `query_task`, `registered`, `reserved`,
#: `revoked`, `scheduled` and `stats`.
AGENTOPS_CELERY_CONTROL = env.boolean("AGENTOPS_CELERY_CONTROL", default=False)
#: Workers send the events of tasks, for monitors of Celery such as Flower, like `agentops worker --events`.
AGENTOPS_TASK_EVENTS = env.boolean("AGENTOPS_TASK_EVENTS", default=False)

# --- Workers ---------------------------------------------------------------------------------------------------------
#: Runs that one worker advances at the same time.
AGENTOPS_CONCURRENCY = env.integer("AGENTOPS_CONCURRENCY", 8, low=1, high=256)
#: Seconds for which a run stays assigned to a worker that has stopped renewing its lease. Afterwards another worker
#: takes the run.
AGENTOPS_LEASE_S = env.seconds("AGENTOPS_LEASE_S", 20, low=0.2, high=3600)
#: Seconds between two renewals of a lease, at most half of `AGENTOPS_LEASE_S`.
AGENTOPS_RENEW_S = env.seconds("AGENTOPS_RENEW_S", 5, low=0.05, high=1800)
#: Seconds between two searches for runs that no worker has.
AGENTOPS_SWEEP_S = env.seconds("AGENTOPS_SWEEP_S", 5, low=0.05, high=600)
#: Seconds that a worker may take to finish what it has begun after SIGTERM. `agentops up` waits at most 2 seconds.
AGENTOPS_GRACE_S = env.seconds("AGENTOPS_GRACE_S", 25, low=0, high=600)
#: Seconds that a worker stays with one run while others wait. 0: one step, whether others wait or not.
AGENTOPS_SLICE_S = env.seconds("AGENTOPS_SLICE_S", 30, low=0, high=3600)
#: Path of a file that a worker touches after each sweep. A file older than a minute means that the worker is stuck.
AGENTOPS_ALIVE_FILE = env.text("AGENTOPS_ALIVE_FILE")
env.require(AGENTOPS_RENEW_S * 2 <= AGENTOPS_LEASE_S, "AGENTOPS_RENEW_S must be at most half of AGENTOPS_LEASE_S")

# --- Runs ------------------------------------------------------------------------------------------------------------
#: Maximum steps of a run and all its predecessors together. A run that has reached it cannot be resumed or forked.
AGENTOPS_MAX_TOTAL_STEPS = env.integer("AGENTOPS_MAX_TOTAL_STEPS", 500, low=1, high=1_000_000)
#: Maximum levels of child runs below a run; 0: no child runs. `max_child_depth` in an agent's settings can lower it.
AGENTOPS_MAX_CHILD_DEPTH = env.integer("AGENTOPS_MAX_CHILD_DEPTH", 2, low=0, high=10)
#: Maximum child runs of one run. `max_children` in an agent's settings can lower it.
AGENTOPS_MAX_CHILDREN = env.integer("AGENTOPS_MAX_CHILDREN", 20, low=0, high=1000)
#: Maximum immediate retries of a failed model call. `max_retries` in an agent's settings overrides it.
AGENTOPS_MAX_RETRIES = env.integer("AGENTOPS_MAX_RETRIES", 3, low=0, high=100)
#: Maximum retries of a failed call of a tool that is safe to repeat. `tool_max_retries` in an agent's settings
#: overrides it.
AGENTOPS_TOOL_MAX_RETRIES = env.integer("AGENTOPS_TOOL_MAX_RETRIES", 1, low=0, high=100)
#: Milliseconds before the first retry; each further one waits twice as long. `retry_base_delay_ms` in an agent's
#: settings overrides it.
AGENTOPS_RETRY_BASE_DELAY_MS = env.integer("AGENTOPS_RETRY_BASE_DELAY_MS", 500, low=0, high=3_600_000)
#: Seconds that a run waits for a model provider that is down or overloaded before it pauses.
AGENTOPS_OUTAGE_S = env.seconds("AGENTOPS_OUTAGE_S", 900, low=0, high=30 * 86_400)

# --- Agents, tools and policies --------------------------------------------------------------------------------------
#: The path of Claude Code's program, for agents of the provider `claude_cli`. Empty: the provider is off. Set it for
#: web processes and workers.
AGENTOPS_CLAUDE_CLI = env.text("AGENTOPS_CLAUDE_CLI")
#: Absolute paths of the directories below which agents may read files (`read_file`, `list_dir`). Without it these tools
#: are off.
AGENTOPS_TOOL_ROOTS = env.directories("AGENTOPS_TOOL_ROOTS")
env.require(
    not any(Path(root).resolve().is_relative_to(AGENTOPS_HOME.resolve()) for root in AGENTOPS_TOOL_ROOTS),
    "AGENTOPS_TOOL_ROOTS must not name AGENTOPS_HOME, or a directory in it",
)
#: Allow agents the tools `write_file` and `edit_file`, below their root.
AGENTOPS_WRITE_TOOLS = env.boolean("AGENTOPS_WRITE_TOOLS", default=False)
#: Allow agents the tool `shell`, which runs commands in their root, in a sandbox.
AGENTOPS_SHELL_TOOL = env.boolean("AGENTOPS_SHELL_TOOL", default=False)
#: Tools that change files, for the diffs of a run: a JSON object such as
#: `{"save_page": {"use": "write", "path": "page", "content": "html"}}`.
#: [Changes](../guides/changes.md#teach-it-your-own-editing-tool) has the uses and their arguments.
AGENTOPS_EDIT_TOOLS: dict[str, edit_tools.DeclaredTool] = env.read(
    "AGENTOPS_EDIT_TOOLS", {}, edit_tools.read_declarations, edit_tools.EXPECTED
)
#: Python modules whose tools agents may use, in addition to the ones in installed packages.
AGENTOPS_TOOL_MODULES = env.names("AGENTOPS_TOOL_MODULES", [])
#: Python modules whose providers agents may name, in addition to the ones in installed packages.
AGENTOPS_PROVIDER_MODULES = env.names("AGENTOPS_PROVIDER_MODULES", [])
#: Python modules whose formats can be imported, in addition to the ones in installed packages.
AGENTOPS_IMPORTER_MODULES = env.names("AGENTOPS_IMPORTER_MODULES", [])
#: Python modules whose durable functions workers execute, in addition to the ones in installed packages.
AGENTOPS_AGENT_MODULES = env.names("AGENTOPS_AGENT_MODULES", [])
#: Slugs of the projects that have the agents of installed packages, and of these modules. Empty: all projects.
AGENTOPS_AGENT_PROJECTS = env.names("AGENTOPS_AGENT_PROJECTS", [])
#: Path of a JSON file with the MCP servers whose tools agents may use.
AGENTOPS_MCP_SERVERS = env.text("AGENTOPS_MCP_SERVERS")
#: Programs that gates of policies may start: names on `PATH`, or absolute paths. Without it gates may use tools only.
AGENTOPS_GATE_COMMANDS = env.names("AGENTOPS_GATE_COMMANDS", [])
#: Seconds that such a program may take.
AGENTOPS_GATE_TIMEOUT_S = env.seconds("AGENTOPS_GATE_TIMEOUT_S", 300, low=0.1, high=86_400)
#: Python modules whose hooks agents may use, in addition to the ones in installed packages.
AGENTOPS_HOOK_MODULES = env.names("AGENTOPS_HOOK_MODULES", [])
#: Names of hooks that are called for every agent, before the hooks of its definition.
AGENTOPS_HOOKS = env.names("AGENTOPS_HOOKS", [])
#: Seconds that a hook may take. A guard that takes longer denies the call.
AGENTOPS_HOOK_TIMEOUT_S = env.seconds("AGENTOPS_HOOK_TIMEOUT_S", 2.0, low=0.01, high=60)
#: Seconds after which an undecided approval expires, unless its rule says otherwise.
AGENTOPS_APPROVAL_EXPIRES_S = env.seconds("AGENTOPS_APPROVAL_EXPIRES_S", 86_400, low=1, high=30 * 86_400)
#: Seconds between two evaluations of the alert rules by a worker. The first message about an agent waits one and a half
#: times as long, so that it can include more runs of the agent.
AGENTOPS_ALERTS_S = env.seconds("AGENTOPS_ALERTS_S", 10, low=0.1, high=30)
#: Directories with further recordings that the `fixture` provider may play.
AGENTOPS_FIXTURES = env.names("AGENTOPS_FIXTURES", [])
#: Allow outgoing requests to private and loopback addresses too: of tools, of alerts, to sinks and webhooks, and to
#: model servers that agents name.
AGENTOPS_ALLOW_PRIVATE_SINKS = env.boolean("AGENTOPS_ALLOW_PRIVATE_SINKS", default=False)
#: API keys for model servers that agents name (`base_url`): `HOST=VARIABLE` or `HOST:PORT=VARIABLE`. The environment
#: variable holds the key, and its name ends with `_KEY` or `_TOKEN`.
AGENTOPS_MODEL_KEYS = env.model_keys("AGENTOPS_MODEL_KEYS")

# --- Web server ------------------------------------------------------------------------------------------------------
#: Requests that one web process works on at the same time. Streams need no thread.
AGENTOPS_WEB_THREADS = env.integer("AGENTOPS_WEB_THREADS", 8, low=1, high=256)
#: Maximum of these for one API key, runner secret or browser session. Further requests wait, so that one client cannot
#: block the others.
AGENTOPS_WEB_THREADS_PER_KEY = env.integer("AGENTOPS_WEB_THREADS_PER_KEY", 2, low=1, high=256)
#: Maximum of these for all API keys of one project, or for all sessions of one user. Requests whose key is not known
#: yet form one such group, and requests of unknown sessions another.
AGENTOPS_WEB_THREADS_PER_PROJECT = env.integer("AGENTOPS_WEB_THREADS_PER_PROJECT", 4, low=1, high=256)
#: Seconds that a client may take to send the headers of a request.
AGENTOPS_HEADER_TIMEOUT_S = env.seconds("AGENTOPS_HEADER_TIMEOUT_S", 10, low=0.1, high=600)
#: Seconds that a client may take to send the body. After that, the answer is 408.
AGENTOPS_BODY_TIMEOUT_S = env.seconds("AGENTOPS_BODY_TIMEOUT_S", 30, low=0.1, high=3600)
#: Connections that one web process keeps open, streams included; more than `AGENTOPS_STREAMS`. Further connections get
#: the answer 503.
AGENTOPS_CONNECTIONS = env.integer("AGENTOPS_CONNECTIONS", 3000, low=1, high=1_000_000)
#: Connections from one IPv4 address or one IPv6 /64 network. Proxies in `FORWARDED_ALLOW_IPS` are exempt.
AGENTOPS_CONNECTIONS_PER_ADDRESS = env.integer("AGENTOPS_CONNECTIONS_PER_ADDRESS", 256, low=1, high=1_000_000)
#: Streams that one web process serves at the same time. Further requests for a stream get the answer 503.
AGENTOPS_STREAMS = env.integer("AGENTOPS_STREAMS", 2000, low=1, high=100_000)
#: Streams of one user or one API key in one web process.
AGENTOPS_STREAMS_PER_USER = env.integer("AGENTOPS_STREAMS_PER_USER", 20, low=1, high=100_000)
#: Events that a stream reads from the database at a time. Further events follow with the next read.
SSE_MAX_BUFFER = env.integer("SSE_MAX_BUFFER", 200, low=1, high=10_000)
env.require(
    AGENTOPS_CONNECTIONS > AGENTOPS_STREAMS,
    "AGENTOPS_CONNECTIONS must be greater than AGENTOPS_STREAMS, because streams are connections too",
)

# --- HTTPS and proxies -----------------------------------------------------------------------------------------------
#: The site is behind a proxy that speaks HTTPS: cookies are secure, HSTS is sent, plain HTTP is redirected.
AGENTOPS_HTTPS = env.boolean("AGENTOPS_HTTPS", default=False)
#: Proxies whose `X-Forwarded-For` and `X-Forwarded-Proto` are trusted: IP addresses, networks, or `*` where only a
#: proxy can connect. Without it none is trusted. Required with `AGENTOPS_HTTPS`.
FORWARDED_ALLOW_IPS = env.proxies("FORWARDED_ALLOW_IPS")
#: Token that lets clients other than loopback see the details of `/readyz`, sent as `Authorization: Bearer TOKEN`.
AGENTOPS_HEALTH_TOKEN = env.text("AGENTOPS_HEALTH_TOKEN", secret=True)
env.require(
    not AGENTOPS_HTTPS or FORWARDED_ALLOW_IPS,
    "FORWARDED_ALLOW_IPS must name the proxy that speaks HTTPS where AGENTOPS_HTTPS is set",
)

# --- Request limits --------------------------------------------------------------------------------------------------
#: API requests per minute with one API key; 0 means no limit. With `REDIS_URL` all processes count together (a large
#: limit may be exceeded by 1 % for each process), without it each by itself.
AGENTOPS_RATE_KEY = env.integer("AGENTOPS_RATE_KEY", 6_000, low=0, high=1_000_000_000)
#: API requests per minute of one user; 0 means no limit.
AGENTOPS_RATE_USER = env.integer("AGENTOPS_RATE_USER", 3_000, low=0, high=1_000_000_000)
#: API requests per minute from one address, with any credential or none; 0 means no limit. IPv6 addresses count by
#: their /64 network.
AGENTOPS_RATE_ADDRESS = env.integer("AGENTOPS_RATE_ADDRESS", 60_000, low=0, high=1_000_000_000)

# --- Logins ----------------------------------------------------------------------------------------------------------
#: Maximum failed logins from one network in 15 minutes, over all user names; 0 means no limit. A browser in which a
#: user has logged in before has a separate count.
AGENTOPS_LOGIN_ATTEMPTS = env.integer("AGENTOPS_LOGIN_ATTEMPTS", 30, low=0, high=1_000_000_000)
#: Prefix length of an IPv4 network that counts as one for `AGENTOPS_LOGIN_ATTEMPTS`; 32 counts each address by itself.
AGENTOPS_LOGIN_IPV4_PREFIX = env.integer("AGENTOPS_LOGIN_IPV4_PREFIX", 24, low=8, high=32)
#: The same for IPv6.
AGENTOPS_LOGIN_IPV6_PREFIX = env.integer("AGENTOPS_LOGIN_IPV6_PREFIX", 56, low=16, high=64)

#: Users can protect their account with a second factor under *Account*: an authenticator app, and recovery codes. Their
#: logins then require it, also those to `/admin/`. If this is switched off again, logins require the password only.
AGENTOPS_SECOND_FACTOR = env.boolean("AGENTOPS_SECOND_FACTOR", default=False)
#: Issuer of an OpenID provider, such as `https://login.example.org/realms/team`: the login page gets a button for it.
#: Register the address of the site with the path `/login/openid/callback` there as redirect URI.
AGENTOPS_OIDC_ISSUER = env.issuer("AGENTOPS_OIDC_ISSUER")
#: Client ID of the site at the provider. Required with `AGENTOPS_OIDC_ISSUER`.
AGENTOPS_OIDC_CLIENT_ID = env.text("AGENTOPS_OIDC_CLIENT_ID")
#: Client secret of the site at the provider. Required with `AGENTOPS_OIDC_ISSUER`.
AGENTOPS_OIDC_CLIENT_SECRET = env.text("AGENTOPS_OIDC_CLIENT_SECRET", secret=True)
#: Name of the provider on the button: *Log in with …*.
AGENTOPS_OIDC_NAME = env.text("AGENTOPS_OIDC_NAME", "OpenID")
#: Everyone whose e-mail address the provider has verified gets an account at the first login. By default only people
#: log in whose account has this address, verified, and people whom a project has invited under it.
AGENTOPS_OIDC_CREATE_USERS = env.boolean("AGENTOPS_OIDC_CREATE_USERS", default=False)
env.require(
    not AGENTOPS_OIDC_ISSUER or (AGENTOPS_OIDC_CLIENT_ID and AGENTOPS_OIDC_CLIENT_SECRET),
    "AGENTOPS_OIDC_CLIENT_ID and AGENTOPS_OIDC_CLIENT_SECRET must be set where AGENTOPS_OIDC_ISSUER is",
)

# --- Ingest ----------------------------------------------------------------------------------------------------------
#: Secrets of at least 16 characters, with commas between them, with which runners may send events instead of an API
#: key. All are valid at once, so that one can replace another.
AGENT_RUNNER_SECRET = env.secrets("AGENT_RUNNER_SECRET", at_least=16)
#: Project of the events that are sent with such a secret.
AGENT_RUNNER_PROJECT = env.text("AGENT_RUNNER_PROJECT", "demo")
#: Path below `/api/` at which events are received.
AGENT_EVENTS_INGEST_PATH = env.text("AGENT_EVENTS_INGEST_PATH", "internal/agent-events").strip("/").removeprefix("api/")
#: Ingest requests per minute with one API key or with the secrets; 0 means no limit.
AGENTOPS_RATE_INGEST = env.integer("AGENTOPS_RATE_INGEST", 60_000, low=0, high=1_000_000_000)
#: Events per minute of one run; 0 means no limit.
AGENTOPS_RATE_RUN_EVENTS = env.integer("AGENTOPS_RATE_RUN_EVENTS", 300_000, low=0, high=1_000_000_000)
#: API key of another site, for `agentops watch --url` and `agentops mcp --url`.
AGENTOPS_API_KEY = env.text("AGENTOPS_API_KEY", secret=True)
#: Seconds without an event after which the runner of a running external run counts as silent. The run's log and page
#: say so; it ends after `AGENTOPS_ABANDON_DAYS`.
AGENTOPS_SILENCE_S = env.seconds("AGENTOPS_SILENCE_S", 120, low=1, high=86_400)
#: Days without an event or an import after which a run of another program that has not ended is stopped as `abandoned`;
#: its next event reopens it. 0: such runs do not end by themselves.
AGENTOPS_ABANDON_DAYS = env.integer("AGENTOPS_ABANDON_DAYS", 7, low=0, high=36_500)

# --- Uploads ---------------------------------------------------------------------------------------------------------
#: Maximum total size in MiB of the files that one request uploads for import, at most 64. Larger uploads get the answer
#: 413.
AGENTOPS_UPLOAD_MIB = env.integer("AGENTOPS_UPLOAD_MIB", 64, low=1, high=64)
#: Seconds that a client may take to send an upload. After that, the answer is 408.
AGENTOPS_UPLOAD_TIMEOUT_S = env.seconds("AGENTOPS_UPLOAD_TIMEOUT_S", 300, low=1, high=3600)
#: MiB that a file may expand to during its import: unpacked bytes, and the texts of all its runs and events. A large
#: file may expand to twice its size. Beyond that, the import is refused with `import_too_large`.
AGENTOPS_IMPORT_MIB = env.integer("AGENTOPS_IMPORT_MIB", 256, low=1, high=16_384)
#: Seconds of CPU time that reading a file may take, and again storing it. A larger file gets this time for each 64 MiB.
#: Beyond that, the import is refused with `import_too_large`.
AGENTOPS_IMPORT_CPU_S = env.seconds("AGENTOPS_IMPORT_CPU_S", 300, low=1, high=86_400)

# --- E-mail ----------------------------------------------------------------------------------------------------------
#: Mail server for notifications: `smtp://`, `smtp+tls://` (STARTTLS) or `smtps://`, with `user:password@` if it
#: requires a login. Without it notifications are shown on the site only.
_mail = env.mail("EMAIL_URL")
#: Sender of e-mails, such as `agentops <agentops@example.org>`. Required with `EMAIL_URL`.
DEFAULT_FROM_EMAIL = env.address("DEFAULT_FROM_EMAIL")
AGENTOPS_EMAIL = bool(_mail)
env.require(not AGENTOPS_EMAIL or DEFAULT_FROM_EMAIL, "DEFAULT_FROM_EMAIL must be set where EMAIL_URL is")
env.require(not AGENTOPS_EMAIL or AGENTOPS_BASE_URL, "AGENTOPS_BASE_URL must be set where EMAIL_URL is")

# --- Telemetry -------------------------------------------------------------------------------------------------------
# Their variables are declared in agentops/base/backing_services.py.
AGENTOPS_TELEMETRY = backing_services.read_telemetry(env)

# --- Logging and debugging -------------------------------------------------------------------------------------------
#: The lowest level that is logged. The log goes to standard error.
_log_level = env.read("LOG_LEVEL", "INFO", log_level, "DEBUG, INFO, WARNING, ERROR or CRITICAL")
#: `text`, or `json` for one JSON object a line.
_log_format = env.choice("LOG_FORMAT", "text", ["text", "json"])
#: Enables Django's debug pages. Never enable it on a site that others can reach.
DEBUG = env.boolean("DEBUG", default=False)
#: Set by the test suite: allows `AGENTOPS_CHAOS`, and new API keys contain `test`.
AGENTOPS_TESTING = env.boolean("AGENTOPS_TESTING", default=False)
#: Tests only: a crash point, and at which of its executions the process ends as if killed, such as `turn.committed:1`.
#: With `:RAISE` at the end an error is raised instead.
AGENTOPS_CHAOS = env.text("AGENTOPS_CHAOS")
env.require(AGENTOPS_TESTING or not AGENTOPS_CHAOS, "AGENTOPS_CHAOS is refused unless AGENTOPS_TESTING is set")
env.require(DEBUG or "*" not in ALLOWED_HOSTS, "ALLOWED_HOSTS must name hosts: '*' is for DEBUG only")
env.refuse_unknown()
# The variables that hold secrets, which runs/environment.py hides and masks.
AGENTOPS_SECRETS = {name: setting.secret for name, setting in env.registered.items() if setting.secret}

# --- Derived settings ------------------------------------------------------------------------------------------------


def _stored_key() -> str:
    """Return a key generated once and stored in AGENTOPS_HOME (mode 0600)."""
    path = AGENTOPS_HOME / "secret_key"
    if not path.exists():
        AGENTOPS_HOME.mkdir(mode=0o700, parents=True, exist_ok=True)
        fresh = path.with_name(f"secret_key.{os.getpid()}")
        fresh.touch(mode=0o600)
        fresh.write_text(secrets.token_urlsafe(64))
        try:
            # link() fails if another process was first: then all processes read the key of that process.
            os.link(fresh, path)
        except FileExistsError:
            pass
        finally:
            fresh.unlink()
    return path.read_text()


if SECRET_KEY:
    is_random = len(SECRET_KEY) >= 50 and len(set(SECRET_KEY)) >= 5
    env.require(is_random, "SECRET_KEY must have at least 50 characters, at least 5 of them different")
else:
    try:
        SECRET_KEY = _stored_key()
    except OSError as error:
        text = f"AGENTOPS_HOME must be a directory that this user may write to ({error.strerror})"
        raise BadSetting(text) from None

DATABASES: dict[str, dict[str, Any]] = {
    "default": database_config(
        _database,
        home=AGENTOPS_HOME,
        process_name=AGENTOPS_PROCESS_NAME,
        lease_s=AGENTOPS_LEASE_S,
        pool=AGENTOPS_DB_POOL,
        concurrency=AGENTOPS_CONCURRENCY,
    )
}
CACHES = {"default": cache_config(REDIS_URL)}

# `memory://` ignores the host, but without one every connection logs a warning.
CELERY_BROKER_URL = REDIS_URL or "memory://localhost"
CELERY_BROKER_TRANSPORT_OPTIONS = broker_options(REDIS_URL)
CELERY_WORKER_CONCURRENCY = AGENTOPS_CONCURRENCY
CELERY_WORKER_SEND_TASK_EVENTS = AGENTOPS_TASK_EVENTS
_upkeep = {"runs.sweep": PlannedTask(AGENTOPS_SWEEP_S, FIRST)}
_upkeep |= upkeep(alerts_s=AGENTOPS_ALERTS_S, sends_mail=AGENTOPS_EMAIL)
CELERY_TASK_ROUTES = routes_of(_upkeep)
CELERY_BEAT_SCHEDULE = schedule_of(_upkeep)

if AGENTOPS_EMAIL:
    EMAIL_HOST, EMAIL_PORT = _mail["host"], _mail["port"]
    EMAIL_HOST_USER, EMAIL_HOST_PASSWORD = _mail["user"], _mail["password"]
    EMAIL_USE_TLS, EMAIL_USE_SSL = _mail["starttls"], _mail["tls"]

SOCIALACCOUNT_PROVIDERS = openid_providers(
    AGENTOPS_OIDC_ISSUER,
    name=AGENTOPS_OIDC_NAME,
    client_id=AGENTOPS_OIDC_CLIENT_ID,
    secret=AGENTOPS_OIDC_CLIENT_SECRET,
)

# Transport security: off for plain HTTP on loopback.
SECURE_SSL_REDIRECT = SESSION_COOKIE_SECURE = CSRF_COOKIE_SECURE = AGENTOPS_HTTPS
# With this prefix, browsers only accept the cookie from this host over HTTPS: no other subdomain can set it.
SESSION_COOKIE_NAME = "__Host-sessionid" if AGENTOPS_HTTPS else "sessionid"
CSRF_COOKIE_NAME = "__Host-csrftoken" if AGENTOPS_HTTPS else "csrftoken"
SECURE_HSTS_SECONDS = 31_536_000 if AGENTOPS_HTTPS else 0
SECURE_HSTS_INCLUDE_SUBDOMAINS = SECURE_HSTS_PRELOAD = AGENTOPS_HTTPS
if AGENTOPS_HTTPS:
    SECURE_PROXY_SSL_HEADER = ("HTTP_X_FORWARDED_PROTO", "https")

LOGGING = logging_config(_log_level, _log_format)
