"""Settings of the tests. ``CONVMEMORY_TEST_DATABASE`` chooses the database: sqlite, postgresql or mariadb.

On PostgreSQL, ``CONVMEMORY_TEST_PARTITIONS`` is the number of partitions of the messages. Without it there are none.
"""

import os
import tempfile

from tests import servers

DATABASE = os.environ.get("CONVMEMORY_TEST_DATABASE", "sqlite")
PARTITIONS = int(os.environ.get("CONVMEMORY_TEST_PARTITIONS") or 0) if DATABASE == "postgresql" else 0
# The statements by which the store finds the id of a session before it reads partitioned messages.
LOOKUPS = 1 if PARTITIONS else 0

# Test databases are named after the run, so that several can run at once. Its workers and children inherit the name.
_test_name = f"test_convmemory_{os.environ.setdefault('CONVMEMORY_TEST_RUN', str(os.getpid()))}"

if DATABASE == "sqlite":
    _folder = tempfile.TemporaryDirectory(prefix="convmemory-")  # removed when the process ends
    _database = {
        "ENGINE": "django.db.backends.sqlite3",
        "NAME": f"{_folder.name}/main.sqlite3",
        "OPTIONS": {
            "init_command": "PRAGMA journal_mode = WAL; PRAGMA synchronous = NORMAL;",
            "timeout": 20,
            "transaction_mode": "IMMEDIATE",
        },
        "TEST": {"NAME": f"{_folder.name}/test.sqlite3"},  # a file: threads and processes share it
    }
elif DATABASE == "postgresql":
    _database = {
        "ENGINE": "django.db.backends.postgresql",
        "NAME": "convmemory",
        **servers.django_database(servers.POSTGRESQL),
        "TEST": {"NAME": _test_name},
    }
elif DATABASE == "mariadb":
    _database = {
        "ENGINE": "django.db.backends.mysql",
        "NAME": "convmemory",
        **servers.django_database(servers.MARIADB),
        "OPTIONS": {"charset": "utf8mb4"},
        "TEST": {"NAME": _test_name, "CHARSET": "utf8mb4"},
    }
else:
    raise ValueError(f"CONVMEMORY_TEST_DATABASE is {DATABASE!r}; it may be sqlite, postgresql or mariadb.")

# A test that starts a process of its own gives it the name of the test database in here.
_database["NAME"] = os.environ.get("CONVMEMORY_TEST_DATABASE_NAME", _database["NAME"])

DATABASES = {"default": _database}
DEFAULT_AUTO_FIELD = "django.db.models.BigAutoField"

SECRET_KEY = "the tests' own"
ALLOWED_HOSTS = ["testserver"]
PASSWORD_HASHERS = ["django.contrib.auth.hashers.MD5PasswordHasher"]
ROOT_URLCONF = "tests.urls"
STATIC_URL = "static/"
USE_TZ = True

INSTALLED_APPS = [
    "django.contrib.admin",
    "django.contrib.auth",
    "django.contrib.contenttypes",
    "django.contrib.messages",
    "django.contrib.sessions",
    "django.contrib.staticfiles",
    "rest_framework",
    "rest_framework.authtoken",
    "django_convmemory",
    "django_convmemory.contrib.partitions",
    "django_convmemory.contrib.embeddings",
]
MIDDLEWARE = [
    "django.contrib.sessions.middleware.SessionMiddleware",
    "django.middleware.common.CommonMiddleware",
    "django.middleware.csrf.CsrfViewMiddleware",
    "django.contrib.auth.middleware.AuthenticationMiddleware",
    "django.contrib.messages.middleware.MessageMiddleware",
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

CONVMEMORY = {
    "default": {
        "MEMORY": "django_convmemory.memory.ConversationSummaryBufferMemory",
        "OPTIONS": {"max_token_limit": 200},
        "CHAT_MODEL": {"BACKEND": "django_convmemory.chat_models.extractive.ExtractiveChatModel"},
        "SCHEDULER": {"BACKEND": "django_convmemory.scheduling.NullScheduler"},
    },
}

REST_FRAMEWORK: dict[str, object] = {"TEST_REQUEST_DEFAULT_FORMAT": "json"}
