"""All settings, each read from the environment by a strict reader (agentops/base/env.py).

agentops/site/settings_reference.py documents them. An invalid value ends the start with exit code 78.
"""

from __future__ import annotations

import os
import secrets
from importlib.metadata import version
from pathlib import Path
from typing import Any

from csp.constants import NONE, SELF

from agentops.base import telemetry_settings
from agentops.base.broker.queues import FIRST
from agentops.base.database.config import database_config
from agentops.base.env import BadSetting, Reader
from agentops.base.redis_config import broker_options, cache_config
from agentops.site.logging_config import log_level, logging_config
from agentops.site.timetable import PlannedTask, routes_of, schedule_of, upkeep

env = Reader()
BASE_DIR = Path(__file__).resolve().parent.parent
# In a checkout, templates and static files are at the top level; in a wheel, inside this package.
FILES_DIR = BASE_DIR if (BASE_DIR / "templates").is_dir() else Path(__file__).resolve().parent

# The directory of the embedded mode's database, key and lock.
AGENTOPS_HOME = Path(env.text("AGENTOPS_HOME", ".agentops")).absolute()
# The port of the web server on 127.0.0.1.
PORT = env.integer("PORT", 8000, low=1, high=65535)
AGENTOPS_TESTING = env.boolean("AGENTOPS_TESTING", default=False)
# A crash point and its hit ("turn.committed:1"); only used in tests, because it ends the process.
AGENTOPS_CHAOS = env.text("AGENTOPS_CHAOS")
if AGENTOPS_CHAOS and not AGENTOPS_TESTING:
    raise BadSetting("AGENTOPS_CHAOS is refused unless AGENTOPS_TESTING is set")

DEBUG = env.boolean("DEBUG", default=False)
ALLOWED_HOSTS = env.names("ALLOWED_HOSTS", ["localhost", "127.0.0.1", "[::1]"])
if "*" in ALLOWED_HOSTS and not DEBUG:
    raise BadSetting("ALLOWED_HOSTS must name hosts: '*' is for DEBUG only")


def _secret_key() -> str:
    """Return the key from SECRET_KEY, or a key generated once and stored in AGENTOPS_HOME (mode 0600)."""
    value = env.text("SECRET_KEY")
    if value:
        if len(value) < 50 or len(set(value)) < 5:
            raise BadSetting("SECRET_KEY must have at least 50 characters, at least 5 of them different")
        return value
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


try:
    SECRET_KEY = _secret_key()
except OSError as error:
    raise BadSetting(f"AGENTOPS_HOME must be a directory that this user may write to ({error.strerror})") from None

# The first key encrypts stored values, all can decrypt. Without any, a key derived from SECRET_KEY is used.
AGENTOPS_ENCRYPTION_KEYS = env.secrets("AGENTOPS_ENCRYPTION_KEYS", at_least=32)

INSTALLED_APPS = [
    # Before Django's apps, because it replaces the command runserver.
    "agentops",
    # Its modules register when the URLs are loaded: commands that serve no pages need not wait for them.
    "django.contrib.admin.apps.SimpleAdminConfig",
    "django.contrib.auth",
    "django.contrib.contenttypes",
    "django.contrib.sessions",
    "django.contrib.messages",
    "django.contrib.staticfiles",
    "csp",
    "django_celery_beat",
    "django_htmx",
    "drf_spectacular_sidecar",
    "rest_framework",
    "agentops.accounts",
    "timeline",
    "runs",
]
MIDDLEWARE = [
    "agentops.base.http.request_ids.RequestId",
    "agentops.base.http.middleware.SecureHeaders",
    # A long timeline is half a megabyte of text, compressed a fifth of it. Streams are not compressed.
    "django.middleware.gzip.GZipMiddleware",
    "agentops.base.http.middleware.PagePolicy",
    "agentops.base.http.middleware.KnownHosts",
    "django.middleware.security.SecurityMiddleware",
    "agentops.base.http.body_limit.RefusedBodies",
    "agentops.base.http.health.Health",
    "agentops.site.static_files.StaticFiles",
    "agentops.base.http.utf8_requests.Utf8Only",
    "agentops.base.http.middleware.Methods",
    "django.contrib.sessions.middleware.SessionMiddleware",
    "django.middleware.common.CommonMiddleware",
    "django.middleware.csrf.CsrfViewMiddleware",
    "django.contrib.auth.middleware.AuthenticationMiddleware",
    "agentops.accounts.login.session_age.SessionAge",
    "django.contrib.messages.middleware.MessageMiddleware",
    "django.middleware.clickjacking.XFrameOptionsMiddleware",
    "django_htmx.middleware.HtmxMiddleware",
    "agentops.accounts.rate_limits.RateLimitHeaders",
    "agentops.base.http.middleware.Refusals",
]
ROOT_URLCONF = "agentops.urls"
ASGI_APPLICATION = "agentops.asgi.application"
TEMPLATES: list[dict[str, Any]] = [
    {
        "BACKEND": "django.template.backends.django.DjangoTemplates",
        "DIRS": [FILES_DIR / "templates"],
        "APP_DIRS": True,
        "OPTIONS": {
            "context_processors": [
                "django.template.context_processors.request",
                "django.contrib.auth.context_processors.auth",
                "django.contrib.messages.context_processors.messages",
            ],
            "builtins": ["agentops.templatetags.badges"],
        },
    }
]

# --- Worker -------------------------------------------------------------------------------------------
REDIS_URL = env.redis("REDIS_URL")
AGENTOPS_LEASE_S = env.seconds("AGENTOPS_LEASE_S", 20, low=0.2, high=3600)
AGENTOPS_RENEW_S = env.seconds("AGENTOPS_RENEW_S", 5, low=0.05, high=1800)
AGENTOPS_SWEEP_S = env.seconds("AGENTOPS_SWEEP_S", 5, low=0.05, high=600)
AGENTOPS_GRACE_S = env.seconds("AGENTOPS_GRACE_S", 25, low=0, high=600)
AGENTOPS_SLICE_S = env.seconds("AGENTOPS_SLICE_S", 30, low=0, high=3600)
AGENTOPS_CONCURRENCY = env.integer("AGENTOPS_CONCURRENCY", 8, low=1, high=256)
AGENTOPS_MAX_TOTAL_STEPS = env.integer("AGENTOPS_MAX_TOTAL_STEPS", 500, low=1, high=1_000_000)
AGENTOPS_MAX_CHILD_DEPTH = env.integer("AGENTOPS_MAX_CHILD_DEPTH", 2, low=0, high=10)
AGENTOPS_MAX_CHILDREN = env.integer("AGENTOPS_MAX_CHILDREN", 20, low=0, high=1000)
AGENTOPS_MAX_RETRIES = env.integer("AGENTOPS_MAX_RETRIES", 3, low=0, high=100)
AGENTOPS_TOOL_MAX_RETRIES = env.integer("AGENTOPS_TOOL_MAX_RETRIES", 1, low=0, high=100)
AGENTOPS_RETRY_BASE_DELAY_MS = env.integer("AGENTOPS_RETRY_BASE_DELAY_MS", 500, low=0, high=3_600_000)
AGENTOPS_OUTAGE_S = env.seconds("AGENTOPS_OUTAGE_S", 900, low=0, high=30 * 86_400)
AGENTOPS_ALIVE_FILE = env.text("AGENTOPS_ALIVE_FILE")
AGENTOPS_FIXTURES = env.names("AGENTOPS_FIXTURES", [])
# Directories that agents may read with read_file and list_dir; none by default (runs/tools/roots.py).
AGENTOPS_TOOL_ROOTS = env.directories("AGENTOPS_TOOL_ROOTS", [])
if any(Path(os.path.realpath(root)).is_relative_to(os.path.realpath(AGENTOPS_HOME)) for root in AGENTOPS_TOOL_ROOTS):
    raise BadSetting("AGENTOPS_TOOL_ROOTS must not name AGENTOPS_HOME, or a directory in it")
AGENTOPS_CLAUDE_CLI = env.text("AGENTOPS_CLAUDE_CLI")
AGENTOPS_WRITE_TOOLS = env.boolean("AGENTOPS_WRITE_TOOLS", default=False)
AGENTOPS_SHELL_TOOL = env.boolean("AGENTOPS_SHELL_TOOL", default=False)
AGENTOPS_TOOL_MODULES = env.names("AGENTOPS_TOOL_MODULES", [])
AGENTOPS_PROVIDER_MODULES = env.names("AGENTOPS_PROVIDER_MODULES", [])
AGENTOPS_IMPORTER_MODULES = env.names("AGENTOPS_IMPORTER_MODULES", [])
AGENTOPS_MCP_SERVERS = env.text("AGENTOPS_MCP_SERVERS")
AGENTOPS_TELEMETRY = telemetry_settings.read(env)
AGENTOPS_ALLOW_PRIVATE_SINKS = env.boolean("AGENTOPS_ALLOW_PRIVATE_SINKS", default=False)
AGENTOPS_MODEL_KEYS = env.model_keys("AGENTOPS_MODEL_KEYS")
AGENTOPS_GATE_COMMANDS = env.names("AGENTOPS_GATE_COMMANDS", [])
AGENTOPS_GATE_TIMEOUT_S = env.seconds("AGENTOPS_GATE_TIMEOUT_S", 300, low=0.1, high=86_400)
AGENTOPS_HOOK_MODULES = env.names("AGENTOPS_HOOK_MODULES", [])
AGENTOPS_HOOKS = env.names("AGENTOPS_HOOKS", [])
AGENTOPS_HOOK_TIMEOUT_S = env.seconds("AGENTOPS_HOOK_TIMEOUT_S", 2.0, low=0.01, high=60)
AGENTOPS_ALERTS_S = env.seconds("AGENTOPS_ALERTS_S", 10, low=0.1, high=30)
AGENTOPS_APPROVAL_EXPIRES_S = env.seconds("AGENTOPS_APPROVAL_EXPIRES_S", 86_400, low=1, high=30 * 86_400)
if AGENTOPS_RENEW_S * 2 > AGENTOPS_LEASE_S:
    raise BadSetting("AGENTOPS_RENEW_S must be at most half of AGENTOPS_LEASE_S")

# --- API: Django REST framework with the site's keys, limits, problem details and pages ---
REST_FRAMEWORK = {
    "DEFAULT_AUTHENTICATION_CLASSES": ["runs.api.callers.KeyAuthentication", "runs.api.callers.LoginAuthentication"],
    "DEFAULT_PERMISSION_CLASSES": ["rest_framework.permissions.IsAuthenticated"],
    "DEFAULT_THROTTLE_CLASSES": ["runs.api.callers.CallerRate"],
    "DEFAULT_CONTENT_NEGOTIATION_CLASS": "runs.api.negotiation.Negotiation",
    "DEFAULT_RENDERER_CLASSES": ["runs.api.negotiation.MaskedJSONRenderer"],
    "DEFAULT_PARSER_CLASSES": ["runs.api.requests.bodies.StrictJSONParser"],
    "DEFAULT_PAGINATION_CLASS": "runs.api.requests.pagination.Pages",
    "DEFAULT_SCHEMA_CLASS": "runs.api.schema.OperationSchema",
    "DEFAULT_METADATA_CLASS": None,
    "EXCEPTION_HANDLER": "runs.api.problems.raise_problem",
    "URL_FORMAT_OVERRIDE": None,
    # Always with microseconds, like the database's own format in long lists.
    "DATETIME_FORMAT": "%Y-%m-%dT%H:%M:%S.%fZ",
}
SPECTACULAR_SETTINGS = {
    "OAS_VERSION": "3.1.0",
    "TITLE": "agentops",
    "DESCRIPTION": "Runs of AI agents: their messages, events and actions.",
    "VERSION": version("agentops"),
    "COMPONENT_SPLIT_REQUEST": False,
    "SORT_OPERATIONS": False,
    "SORT_OPERATION_PARAMETERS": False,
    "ENUM_GENERATE_CHOICE_DESCRIPTION": False,
    "POSTPROCESSING_HOOKS": ["runs.api.schema.add_examples"],
}

# API requests per minute; 0: unlimited (agentops/accounts/rate_limits.py).
AGENTOPS_RATE_KEY = env.integer("AGENTOPS_RATE_KEY", 6_000, low=0, high=1_000_000_000)
AGENTOPS_RATE_USER = env.integer("AGENTOPS_RATE_USER", 3_000, low=0, high=1_000_000_000)
AGENTOPS_RATE_ADDRESS = env.integer("AGENTOPS_RATE_ADDRESS", 60_000, low=0, high=1_000_000_000)

# --- Ingest: the events of runners (runs/api/ingest/event_posts.py) --------------------------------------------------
AGENT_RUNNER_SECRET = env.secrets("AGENT_RUNNER_SECRET", at_least=16)
AGENT_RUNNER_PROJECT = env.text("AGENT_RUNNER_PROJECT", "demo")
AGENT_EVENTS_INGEST_PATH = env.text("AGENT_EVENTS_INGEST_PATH", "internal/agent-events").strip("/").removeprefix("api/")
AGENTOPS_RATE_INGEST = env.integer("AGENTOPS_RATE_INGEST", 60_000, low=0, high=1_000_000_000)
AGENTOPS_RATE_RUN_EVENTS = env.integer("AGENTOPS_RATE_RUN_EVENTS", 300_000, low=0, high=1_000_000_000)
AGENTOPS_API_KEY = env.text("AGENTOPS_API_KEY")
AGENTOPS_SILENCE_S = env.seconds("AGENTOPS_SILENCE_S", 120, low=1, high=86_400)
AGENTOPS_ABANDON_DAYS = env.integer("AGENTOPS_ABANDON_DAYS", 7, low=0, high=36_500)

# --- Uploads: files to import (runs/external/uploads). Importers refuse files above 64 MiB -----------------------
AGENTOPS_UPLOAD_MIB = env.integer("AGENTOPS_UPLOAD_MIB", 64, low=1, high=64)
AGENTOPS_UPLOAD_TIMEOUT_S = env.seconds("AGENTOPS_UPLOAD_TIMEOUT_S", 300, low=1, high=3600)
AGENTOPS_IMPORT_MIB = env.integer("AGENTOPS_IMPORT_MIB", 256, low=1, high=16_384)
AGENTOPS_IMPORT_CPU_S = env.seconds("AGENTOPS_IMPORT_CPU_S", 300, low=1, high=86_400)
FILE_UPLOAD_HANDLERS = ["agentops.base.http.upload_handler.NamelessFileHandler"]

# --- Streams --------------------------------------------------------------------------------------------
AGENTOPS_STREAMS = env.integer("AGENTOPS_STREAMS", 2000, low=1, high=100_000)
AGENTOPS_STREAMS_PER_USER = env.integer("AGENTOPS_STREAMS_PER_USER", 20, low=1, high=100_000)
SSE_MAX_BUFFER = env.integer("SSE_MAX_BUFFER", 200, low=1, high=10_000)
EVENTSTREAM_CHANNELMANAGER_CLASS = "timeline.live.bus.ChannelManager"

# --- Web server: limits per client (agentops/base/http/protocol.py, agentops/base/http/body_limit.py) ----------------
AGENTOPS_WEB_THREADS = env.integer("AGENTOPS_WEB_THREADS", 8, low=1, high=256)
AGENTOPS_WEB_THREADS_PER_KEY = env.integer("AGENTOPS_WEB_THREADS_PER_KEY", 2, low=1, high=256)
AGENTOPS_WEB_THREADS_PER_PROJECT = env.integer("AGENTOPS_WEB_THREADS_PER_PROJECT", 4, low=1, high=256)
AGENTOPS_HEADER_TIMEOUT_S = env.seconds("AGENTOPS_HEADER_TIMEOUT_S", 10, low=0.1, high=600)
AGENTOPS_BODY_TIMEOUT_S = env.seconds("AGENTOPS_BODY_TIMEOUT_S", 30, low=0.1, high=3600)
AGENTOPS_CONNECTIONS = env.integer("AGENTOPS_CONNECTIONS", 3000, low=1, high=1_000_000)
AGENTOPS_CONNECTIONS_PER_ADDRESS = env.integer("AGENTOPS_CONNECTIONS_PER_ADDRESS", 256, low=1, high=1_000_000)
if AGENTOPS_CONNECTIONS <= AGENTOPS_STREAMS:
    raise BadSetting("AGENTOPS_CONNECTIONS must be greater than AGENTOPS_STREAMS, because streams are connections too")

# --- Database -----------------------------------------------------------------------------------------
# Shown in pg_stat_activity, so that connections can be counted by kind of process.
AGENTOPS_PROCESS_NAME = env.text("AGENTOPS_PROCESS_NAME", "agentops")
AGENTOPS_DB_POOL = env.integer("AGENTOPS_DB_POOL", 20, low=0, high=500)
# The number of processes with such a pool: agentops.checks compares their total with the server's limit.
AGENTOPS_DB_PROCESSES = env.integer("AGENTOPS_DB_PROCESSES", 1, low=1, high=10_000)
DATABASES: dict[str, dict[str, Any]] = {
    "default": database_config(
        env,
        home=AGENTOPS_HOME,
        process_name=AGENTOPS_PROCESS_NAME,
        lease_s=AGENTOPS_LEASE_S,
        pool=AGENTOPS_DB_POOL,
        concurrency=AGENTOPS_CONCURRENCY,
    )
}
DEFAULT_AUTO_FIELD = "django.db.models.BigAutoField"

# --- Celery: a message may be lost, the database is the truth (see runs/tasks.py) ----------------------------
# The host means nothing there, but without one every connection logs a warning.
CELERY_BROKER_URL = REDIS_URL or "memory://localhost"
CELERY_TASK_IGNORE_RESULT = True
# A restart of Redis kills a worker that holds a late-acknowledged task; the lease recovers early-acknowledged ones.
CELERY_TASK_ACKS_LATE = False
CELERY_WORKER_PREFETCH_MULTIPLIER = 1
CELERY_ACCEPT_CONTENT = ["json"]
# Commands that `celery inspect` does not use (agentops/base/broker/redis_transport.py).
AGENTOPS_CELERY_CONTROL = env.boolean("AGENTOPS_CELERY_CONTROL", default=False)
# Events of tasks and heartbeats for monitors such as Flower. `agentops worker --events` also sends them.
AGENTOPS_TASK_EVENTS = env.boolean("AGENTOPS_TASK_EVENTS", default=False)
CELERY_WORKER_SEND_TASK_EVENTS = AGENTOPS_TASK_EVENTS
CELERY_TASK_SERIALIZER = "json"
CELERY_TASK_DEFAULT_QUEUE = "default"
CELERY_WORKER_CONCURRENCY = AGENTOPS_CONCURRENCY
# agentops/base/broker/places.py limits the tasks that a worker takes; a slice is acknowledged when it begins.
CELERY_WORKER_ENABLE_PREFETCH_COUNT_REDUCTION = False
CELERY_BROKER_CONNECTION_RETRY_ON_STARTUP = True
CELERY_BROKER_CONNECTION_MAX_RETRIES = None
# Otherwise a key of another type in Redis would end each worker at its start.
CELERY_BROKER_CHANNEL_ERROR_RETRY = True
CELERY_WORKER_CANCEL_LONG_RUNNING_TASKS_ON_CONNECTION_LOSS = False
CELERY_WORKER_HIJACK_ROOT_LOGGER = False
# Publishing may delay a request by at most a second; the sweep handles lost messages anyway.
CELERY_TASK_PUBLISH_RETRY = False
CELERY_BROKER_TRANSPORT_OPTIONS = broker_options(REDIS_URL)
CELERY_BEAT_SCHEDULER = "agentops.site.scheduler:SiteScheduler"

# --- Identity, time, static files -----------------------------------------------------------------------
PASSWORD_HASHERS = [
    "agentops.accounts.login.hashers.Argon2",
    "agentops.accounts.login.hashers.Scrypt",
]
AUTH_PASSWORD_VALIDATORS = [
    {"NAME": "django.contrib.auth.password_validation.UserAttributeSimilarityValidator"},
    {"NAME": "django.contrib.auth.password_validation.MinimumLengthValidator", "OPTIONS": {"min_length": 12}},
    {"NAME": "django.contrib.auth.password_validation.CommonPasswordValidator"},
]
LOGIN_URL = LOGOUT_REDIRECT_URL = "login"
LOGIN_REDIRECT_URL = "home"
# Per network in 15 minutes, with any username (agentops/accounts/login/form.py); 0: unlimited.
AGENTOPS_LOGIN_ATTEMPTS = env.integer("AGENTOPS_LOGIN_ATTEMPTS", 30, low=0, high=1_000_000_000)
AGENTOPS_LOGIN_IPV4_PREFIX = env.integer("AGENTOPS_LOGIN_IPV4_PREFIX", 24, low=8, high=32)
AGENTOPS_LOGIN_IPV6_PREFIX = env.integer("AGENTOPS_LOGIN_IPV6_PREFIX", 56, low=16, high=64)
# Maximum; without requests, sessions end after twelve hours (agentops/accounts/login/sessions.py).
SESSION_COOKIE_AGE = 7 * 24 * 3600
CACHES = {"default": cache_config(REDIS_URL)}
LANGUAGE_CODE = "en-us"
# The site is in English only. Otherwise Django looks up a translation for each text and a language for each URL.
USE_I18N = False
USE_TZ = True
TIME_ZONE = "UTC"
STATIC_URL = "static/"
STATICFILES_DIRS = [FILES_DIR / "static"]
STORAGES = {
    "default": {"BACKEND": "django.core.files.storage.FileSystemStorage"},
    "staticfiles": {"BACKEND": "agentops.site.static_files.HashedAddresses"},
}
# Served from their source directories: collectstatic is not needed.
WHITENOISE_USE_FINDERS = True
WHITENOISE_ALLOW_ALL_ORIGINS = False

# --- E-mail: notifications to the operators of a project; without it, only the site displays them ----------------
_mail = env.mail("EMAIL_URL")
DEFAULT_FROM_EMAIL = env.address("DEFAULT_FROM_EMAIL")
# The public URL of the site, for links in mails.
AGENTOPS_BASE_URL = env.site("AGENTOPS_BASE_URL")
AGENTOPS_EMAIL = bool(_mail)
if AGENTOPS_EMAIL:
    if not DEFAULT_FROM_EMAIL:
        raise BadSetting("DEFAULT_FROM_EMAIL must be set where EMAIL_URL is")
    if not AGENTOPS_BASE_URL:
        raise BadSetting("AGENTOPS_BASE_URL must be set where EMAIL_URL is")
    EMAIL_HOST, EMAIL_PORT = _mail["host"], _mail["port"]
    EMAIL_HOST_USER, EMAIL_HOST_PASSWORD = _mail["user"], _mail["password"]
    EMAIL_USE_TLS, EMAIL_USE_SSL = _mail["starttls"], _mail["tls"]
EMAIL_TIMEOUT = 10  # seconds, of one exchange with the server

# --- Transport security: on by default, off for plain HTTP on loopback ------------------------------------
AGENTOPS_HTTPS = env.boolean("AGENTOPS_HTTPS", default=False)
SECURE_SSL_REDIRECT = AGENTOPS_HTTPS
SESSION_COOKIE_SECURE = CSRF_COOKIE_SECURE = AGENTOPS_HTTPS
# With this prefix, browsers only accept the cookie from this host over HTTPS: no other subdomain can set it.
SESSION_COOKIE_NAME = "__Host-sessionid" if AGENTOPS_HTTPS else "sessionid"
CSRF_COOKIE_NAME = "__Host-csrftoken" if AGENTOPS_HTTPS else "csrftoken"
# Pages contain the token (base.html), so scripts need not read the cookie.
CSRF_COOKIE_HTTPONLY = True
CSRF_FAILURE_VIEW = "agentops.base.http.error_pages.csrf_failed"
SECURE_HSTS_SECONDS = 31_536_000 if AGENTOPS_HTTPS else 0
SECURE_HSTS_INCLUDE_SUBDOMAINS = SECURE_HSTS_PRELOAD = AGENTOPS_HTTPS
# Probes send plain HTTP requests to the process itself.
SECURE_REDIRECT_EXEMPT = [r"^(healthz|readyz|metrics)$"]
if AGENTOPS_HTTPS:
    SECURE_PROXY_SSL_HEADER = ("HTTP_X_FORWARDED_PROTO", "https")
# Proxies whose headers about addresses and HTTPS are trusted. Other clients could fake an address for each attempt.
FORWARDED_ALLOW_IPS = env.proxies("FORWARDED_ALLOW_IPS")
if AGENTOPS_HTTPS and not FORWARDED_ALLOW_IPS:
    raise BadSetting("FORWARDED_ALLOW_IPS must name the proxy that speaks HTTPS where AGENTOPS_HTTPS is set")
AGENTOPS_HEALTH_TOKEN = env.text("AGENTOPS_HEALTH_TOKEN")
SECURE_REFERRER_POLICY = "same-origin"
X_FRAME_OPTIONS = "DENY"
CONTENT_SECURITY_POLICY = {
    "DIRECTIVES": {
        "default-src": [NONE],
        "script-src": [SELF],
        "style-src": [SELF],
        "img-src": [SELF, "data:"],
        "connect-src": [SELF],
        "font-src": [SELF],
        "form-action": [SELF],
        "frame-ancestors": [NONE],
        "base-uri": [NONE],
        "object-src": [NONE],
        "require-trusted-types-for": ["'script'"],
        "report-uri": ["/csp-report"],
    }
}

LOGGING = logging_config(
    env.read("LOG_LEVEL", "INFO", log_level, "DEBUG, INFO, WARNING, ERROR or CRITICAL"),
    env.choice("LOG_FORMAT", "text", ["text", "json"]),
)

env.refuse_unknown()

# --- The clock ------------------------------------------------------------------------------------------
_upkeep = {"runs.sweep": PlannedTask(AGENTOPS_SWEEP_S, FIRST)}
_upkeep |= upkeep(alerts_s=AGENTOPS_ALERTS_S, sends_mail=AGENTOPS_EMAIL)
CELERY_TASK_ROUTES = routes_of(_upkeep)
CELERY_BEAT_SCHEDULE = schedule_of(_upkeep)
