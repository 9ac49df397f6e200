"""Settings of the example project. By default it uses SQLite, a folder as the broker, and a model without a key.

These environment variables choose servers instead:

- ``DATABASE_URL``, and ``DATABASE_POOL``: the most connections to PostgreSQL that a process keeps
- ``CELERY_BROKER_URL``
- ``CACHE_URL``: Redis
- ``OPENAI_MODEL``, with ``OPENAI_API_KEY`` and ``OPENAI_BASE_URL``

``SECRET_KEY`` makes it a production site: without debugging, without the demo user, with HTTPS, and only for the hosts
in ``ALLOWED_HOSTS``.
"""

import os
from pathlib import Path
from typing import Any
from urllib.parse import parse_qsl, quote, unquote, urlsplit

import django
from django.core.exceptions import ImproperlyConfigured

from mysite import folder_broker

BASE_DIR = Path(__file__).resolve().parent.parent
DATA_DIR = Path(os.environ.get("EXAMPLE_DATA_DIR", BASE_DIR / "data"))
DATA_DIR.mkdir(parents=True, exist_ok=True)

PRODUCTION = bool(os.environ.get("SECRET_KEY"))
SECRET_KEY = os.environ.get("SECRET_KEY") or "an example has no secrets"
DEBUG = not PRODUCTION
ALLOWED_HOSTS = os.environ.get("ALLOWED_HOSTS", "").split(",") if PRODUCTION else ["localhost", "127.0.0.1", "[::1]"]
CSRF_TRUSTED_ORIGINS = [f"https://{host}" for host in ALLOWED_HOSTS if host] if PRODUCTION else []
# The demo user's name is also the password.
DEMO_USER = "" if PRODUCTION else "demo"
if PRODUCTION:
    # HTTPS ends at a proxy, which sets this header.
    SECURE_PROXY_SSL_HEADER = ("HTTP_X_FORWARDED_PROTO", "https")
    SECURE_SSL_REDIRECT = os.environ.get("SECURE_SSL_REDIRECT", "1") != "0"
    SECURE_HSTS_SECONDS = 31_536_000
    SECURE_HSTS_INCLUDE_SUBDOMAINS = True
    SECURE_HSTS_PRELOAD = True
    SESSION_COOKIE_SECURE = True
    CSRF_COOKIE_SECURE = True

ENGINES = {
    "sqlite": "sqlite3",
    "postgres": "postgresql",
    "postgresql": "postgresql",
    "mysql": "mysql",
    "mariadb": "mysql",
}
ENGINE_OPTIONS: dict[str, dict[str, Any]] = {
    # Readers and writers work at the same time, and writers wait for each other.
    "sqlite3": {"init_command": "PRAGMA journal_mode=WAL;", "transaction_mode": "IMMEDIATE", "timeout": 20},
    # Under ASGI each request has its own thread. Without a pool it would have its own connection, too.
    "postgresql": {"pool": {"min_size": 1, "max_size": int(os.environ.get("DATABASE_POOL") or 20), "timeout": 10}},
    "mysql": {"charset": "utf8mb4"},
}


def database(url: str) -> dict[str, Any]:
    """Return the entry of ``DATABASES`` for ``url``.

    ``sqlite:///file.sqlite3`` (in the folder of manage.py; four slashes before an absolute path),
    ``postgresql://user:password@host:5432/name`` or ``mysql://…``. The query string becomes ``OPTIONS``.
    Special characters are percent-encoded.
    """
    parts = urlsplit(url)
    engine = ENGINES.get(parts.scheme)
    name = unquote(parts.path.removeprefix("/"))
    if engine is None or not name or name == ":memory:":
        raise ImproperlyConfigured(
            "DATABASE_URL must be like sqlite:///chat.sqlite3 or postgresql://user:password@host:5432/chat. It needs a "
            f"database name and one of the schemes {', '.join(ENGINES)}."
        )
    if engine == "sqlite3":
        # The site, the worker and the replay use the same file, whatever their working folder is.
        name = str(BASE_DIR / name)
    options = {key: int(value) if value.isdecimal() else value for key, value in parse_qsl(parts.query)}
    entry = {
        "ENGINE": f"django.db.backends.{engine}",
        "NAME": name,
        "OPTIONS": ENGINE_OPTIONS[engine] | options,
    }
    if engine != "sqlite3":
        entry |= {
            "HOST": unquote(parts.hostname or ""),
            "PORT": str(parts.port or ""),
            "USER": unquote(parts.username or ""),
            "PASSWORD": unquote(parts.password or ""),
        }
    return entry


DATABASES = {"default": database(os.environ.get("DATABASE_URL") or f"sqlite:///{quote(f'{DATA_DIR}/db.sqlite3')}")}
DEFAULT_AUTO_FIELD = "django.db.models.BigAutoField"

if os.environ.get("CELERY_BROKER_URL"):
    CELERY_BROKER_URL = os.environ["CELERY_BROKER_URL"]
else:
    CELERY_BROKER_TRANSPORT = "mysite.folder_broker:Transport"
    CELERY_BROKER_URL = "filesystem://localhost"
    CELERY_BROKER_TRANSPORT_OPTIONS = folder_broker.options(DATA_DIR / "broker")
    # Remote control would leave a queue behind for each worker that ever ran.
    CELERY_WORKER_ENABLE_REMOTE_CONTROL = False
CELERY_BROKER_CONNECTION_RETRY_ON_STARTUP = True
CELERY_TASK_IGNORE_RESULT = True
# The sweep finds sessions whose task was lost. To run it: celery -A mysite beat.
CELERY_BEAT_SCHEDULE = {
    "convmemory-sweep": {"task": "convmemory.sweep", "schedule": 60.0, "options": {"queue": "convmemory"}},
}

if os.environ.get("OPENAI_MODEL"):
    # The chat model reads OPENAI_MODEL, OPENAI_API_KEY and OPENAI_BASE_URL itself.
    CHAT_MODEL = "django_convmemory.chat_models.openai.OpenAIChatModel"
else:
    CHAT_MODEL = "chat.summaries.OfflineChatModel"

# Small, so that short conversations are summarized. A real site would use thousands.
TOKEN_LIMIT = int(os.environ.get("CONVMEMORY_TOKEN_LIMIT") or 300)
SUMMARY_TOKENS = max(16, TOKEN_LIMIT * 2 // 3)

CONVMEMORY = {
    "default": {
        "MEMORY": "django_convmemory.memory.ConversationSummaryBufferMemory",
        "OPTIONS": {
            "max_token_limit": TOKEN_LIMIT,
            # More than a user types into the page, and more than the longest reply.
            "max_message_bytes": 200_000,
            "max_summary_tokens": SUMMARY_TOKENS,
            # With room for messages that the worker has not folded yet.
            "max_context_tokens": 3 * TOKEN_LIMIT,
        },
        "CHAT_MODEL": {"BACKEND": CHAT_MODEL},
        "SCHEDULER": {"BACKEND": "django_convmemory.tasks.CeleryScheduler", "OPTIONS": {"queue": "convmemory"}},
    },
}

INSTALLED_APPS = [
    "django.contrib.admin",
    "django.contrib.auth",
    "django.contrib.contenttypes",
    "django.contrib.messages",
    "django.contrib.sessions",
    "django.contrib.staticfiles",
    "rest_framework",
    "django_convmemory",
    "chat",
]
# Which scripts, styles and images the pages may load: those of this site, in files of their own. So a script that
# somebody gets into a message does not run.
SECURE_CSP = {
    "default-src": ["'none'"],
    "script-src": ["'self'"],
    "style-src": ["'self'"],
    "img-src": ["'self'"],
    "font-src": ["'self'"],
    "connect-src": ["'self'"],
    "form-action": ["'self'"],
    "base-uri": ["'none'"],
    "frame-ancestors": ["'none'"],
}
# Django sends the policy itself since version 6.
CONTENT_SECURITY_POLICY = {"DIRECTIVES": SECURE_CSP}
MIDDLEWARE = [
    "django.middleware.security.SecurityMiddleware",
    "csp.middleware.CSPMiddleware"
    if django.VERSION < (6, 0)
    else "django.middleware.csp.ContentSecurityPolicyMiddleware",
    "django.contrib.sessions.middleware.SessionMiddleware",
    "django.middleware.common.CommonMiddleware",
    "django.middleware.csrf.CsrfViewMiddleware",
    "django.contrib.auth.middleware.AuthenticationMiddleware",
    "django.contrib.messages.middleware.MessageMiddleware",
    "django.middleware.clickjacking.XFrameOptionsMiddleware",
    "mysite.threads.in_one_thread",
]
TEMPLATES = [
    {
        "BACKEND": "django.template.backends.django.DjangoTemplates",
        "APP_DIRS": True,
        "OPTIONS": {
            "context_processors": [
                "django.template.context_processors.request",
                "django.contrib.auth.context_processors.auth",
                "django.contrib.messages.context_processors.messages",
            ],
        },
    },
]
ROOT_URLCONF = "mysite.urls"
STATIC_URL = "static/"
STATIC_ROOT = BASE_DIR / "static"
LOGIN_URL = "login"
LOGIN_REDIRECT_URL = LOGOUT_REDIRECT_URL = "chat:index"

REST_FRAMEWORK = {
    "DEFAULT_THROTTLE_RATES": {
        "chat": os.environ.get("CHAT_RATE") or "30/min",
        "reply": os.environ.get("CHAT_RATE") or "40/min",
        "convmemory_append": "60/min",
        "convmemory_create": "30/min",
    },
}
# Visitors may use the API too.
CONVMEMORY_API = {"SCOPE": "django_convmemory.api.scopes.UserOrVisitorScope"}
# The throttles count requests here. With several processes, use Redis, so that they share the counts.
CACHES = {
    "default": {"BACKEND": "django.core.cache.backends.redis.RedisCache", "LOCATION": os.environ["CACHE_URL"]}
    if os.environ.get("CACHE_URL")
    else {"BACKEND": "django.core.cache.backends.locmem.LocMemCache"}
}
LANGUAGE_CODE = "en"
USE_TZ = True
TIME_ZONE = "UTC"
