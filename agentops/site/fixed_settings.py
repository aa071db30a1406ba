"""Settings of Django, Django REST framework and Celery that no environment variable changes."""

from __future__ import annotations

from importlib.metadata import version
from pathlib import Path
from typing import Any

from csp.constants import NONE, SELF

BASE_DIR = Path(__file__).resolve().parents[2]
# In a checkout, templates and static files are at the top level; in a wheel, inside the package.
FILES_DIR = BASE_DIR if (BASE_DIR / "templates").is_dir() else BASE_DIR / "agentops"

INSTALLED_APPS = [
    # Before Django's apps, because it replaces the command runserver.
    "agentops.apps.SiteConfig",
    # The modules `admin` are imported with the URLs, so that commands without pages need not wait for them.
    "agentops.apps.AdministrationConfig",
    "django.contrib.auth",
    "django.contrib.contenttypes",
    "django.contrib.sessions",
    "django.contrib.messages",
    "django.contrib.staticfiles",
    # Its models are always installed, so that the tables do not depend on settings. Its templates are ours.
    "allauth.account",
    "allauth.mfa",
    "allauth.socialaccount",
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
    "agentops.base.http.log_lines.RequestId",
    "agentops.base.http.middleware.SecureHeaders",
    # A long timeline has half a megabyte, which compression reduces to a fifth. Streams are not compressed.
    "django.middleware.gzip.GZipMiddleware",
    "agentops.base.http.middleware.PagePolicy",
    "agentops.base.http.middleware.KnownHosts",
    "agentops.base.http.api_version.ApiVersion",
    "django.middleware.security.SecurityMiddleware",
    "agentops.base.http.request_bodies.RefusedBodies",
    "agentops.base.http.health.Health",
    "agentops.site.static_files.StaticFiles",
    "agentops.base.http.threaded.Utf8Only",
    "agentops.base.http.middleware.Methods",
    "django.contrib.sessions.middleware.SessionMiddleware",
    "django.middleware.common.CommonMiddleware",
    "django.middleware.csrf.CsrfViewMiddleware",
    "django.contrib.auth.middleware.AuthenticationMiddleware",
    "agentops.accounts.login.sessions.SessionAge",
    "django.contrib.messages.middleware.MessageMiddleware",
    "allauth.account.middleware.AccountMiddleware",
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

# --- API: Django REST framework with the site's keys, limits, problem details and pages ---
REST_FRAMEWORK = {
    "DEFAULT_AUTHENTICATION_CLASSES": ["runs.api.callers.KeyAuthentication", "runs.api.callers.LoginAuthentication"],
    "DEFAULT_PERMISSION_CLASSES": ["rest_framework.permissions.IsAuthenticated"],
    "DEFAULT_THROTTLE_CLASSES": ["runs.api.callers.CallerRate"],
    "DEFAULT_CONTENT_NEGOTIATION_CLASS": "runs.api.callers.Negotiation",
    "DEFAULT_RENDERER_CLASSES": ["runs.api.callers.MaskedJSONRenderer"],
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
FILE_UPLOAD_HANDLERS = ["agentops.base.http.request_bodies.NamelessFileHandler"]
EVENTSTREAM_CHANNELMANAGER_CLASS = "timeline.live.bus.ChannelManager"
DEFAULT_AUTO_FIELD = "django.db.models.BigAutoField"

# --- Celery: a message may be lost; the work is in the database (see runs/tasks.py) ---------------------------
CELERY_TASK_IGNORE_RESULT = True
# A restart of Redis ends a worker that holds a late-acknowledged task. Leases recover early-acknowledged tasks.
CELERY_TASK_ACKS_LATE = False
CELERY_WORKER_PREFETCH_MULTIPLIER = 1
CELERY_ACCEPT_CONTENT = ["json"]
CELERY_TASK_SERIALIZER = "json"
CELERY_TASK_DEFAULT_QUEUE = "default"
# agentops/base/worker_places.py limits the tasks that a worker takes; a slice is acknowledged when it begins.
CELERY_WORKER_ENABLE_PREFETCH_COUNT_REDUCTION = False
CELERY_BROKER_CONNECTION_RETRY_ON_STARTUP = True
CELERY_BROKER_CONNECTION_MAX_RETRIES = None
# Otherwise each worker would end at its start if Redis has a value of another type under the name of a queue.
CELERY_BROKER_CHANNEL_ERROR_RETRY = True
CELERY_WORKER_CANCEL_LONG_RUNNING_TASKS_ON_CONNECTION_LOSS = False
CELERY_WORKER_HIJACK_ROOT_LOGGER = False
# Without retries, publishing delays a request by at most a second. The sweep sends lost messages again.
CELERY_TASK_PUBLISH_RETRY = False
CELERY_BEAT_SCHEDULER = "agentops.site.scheduler:SiteScheduler"

# --- Passwords and sessions -----------------------------------------------------------------------------
PASSWORD_HASHERS = [
    "agentops.accounts.login.hashers.Argon2",
    "agentops.accounts.login.hashers.Scrypt",
]
AUTH_PASSWORD_VALIDATORS = [
    {"NAME": "django.contrib.auth.password_validation.UserAttributeSimilarityValidator"},
    {"NAME": "django.contrib.auth.password_validation.MinimumLengthValidator", "OPTIONS": {"min_length": 12}},
    {"NAME": "django.contrib.auth.password_validation.CommonPasswordValidator"},
]
LOGIN_URL = LOGOUT_REDIRECT_URL = "account_login"
LOGIN_REDIRECT_URL = "home"
# Seconds. Sessions without requests end after twelve hours (agentops/accounts/login/sessions.py).
SESSION_COOKIE_AGE = 7 * 24 * 3600
# --- Steps of a login after the password: django-allauth (docs/decisions/login.md) -----------------------
ACCOUNT_ADAPTER = "agentops.accounts.login.flow.LoginAdapter"
ACCOUNT_EMAIL_VERIFICATION = "none"
ACCOUNT_FORMS = {"reauthenticate": "agentops.accounts.login.forms.PasswordForm"}
# Off: they trust Redis, and fail without it. Attempts are limited by agentops/accounts/login/throttle.py.
ACCOUNT_RATE_LIMITS = False
ACCOUNT_REAUTHENTICATION_METHODS = ["password"]
MFA_ADAPTER = "agentops.accounts.login.second_factor.EncryptedFactors"
MFA_FORMS = {"authenticate": "agentops.accounts.login.second_factor.CodeForm"}
MFA_TOTP_ISSUER = "agentops"
# Also the codes before and after the current one: the clocks of phones differ.
MFA_TOTP_TOLERANCE = 1
SOCIALACCOUNT_ADAPTER = "agentops.accounts.login.openid.OpenIDAdapter"
SOCIALACCOUNT_LOGIN_ON_GET = True

# --- Language, time, static files ------------------------------------------------------------------------
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
# Seconds of one exchange with the mail server.
EMAIL_TIMEOUT = 10

# --- Transport security --------------------------------------------------------------------------------------
# Pages contain the token (base.html), so scripts need not read the cookie.
CSRF_COOKIE_HTTPONLY = True
CSRF_FAILURE_VIEW = "agentops.base.http.error_pages.csrf_failed"
# Probes send plain HTTP requests to the process itself.
SECURE_REDIRECT_EXEMPT = [r"^(healthz|readyz|metrics)$"]
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
