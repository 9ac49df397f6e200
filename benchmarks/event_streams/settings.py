"""The site of ``benchmarks.http_api``, whose users log in with a cookie. It has a pool of connections, for ASGI."""

from benchmarks.http_api.settings import *  # noqa: F403

INSTALLED_APPS = [*INSTALLED_APPS, "django.contrib.sessions"]  # noqa: F405
MIDDLEWARE = [
    "django.contrib.sessions.middleware.SessionMiddleware",
    "django.middleware.common.CommonMiddleware",
    "django.contrib.auth.middleware.AuthenticationMiddleware",
]
REST_FRAMEWORK = {"DEFAULT_AUTHENTICATION_CLASSES": ["rest_framework.authentication.SessionAuthentication"]}
CONVMEMORY_API = {"MAX_EVENT_STREAMS": 100_000}
DATABASES["default"] |= {  # noqa: F405
    "CONN_MAX_AGE": 0,
    "OPTIONS": {"pool": {"min_size": 1, "max_size": 20, "timeout": 60}},
}
