"""A site with the HTTP API, and with minimal DRF endpoints for the same rows.

``BENCH_DATABASE`` names a database of the local PostgreSQL. ``BENCH_MODEL_URL`` is an OpenAI-compatible server.
"""

import os

SECRET_KEY = "the benchmark's own"
ALLOWED_HOSTS = ["*"]
USE_TZ = True
ROOT_URLCONF = "benchmarks.http_api.urls"
INSTALLED_APPS = [
    "django.contrib.auth",
    "django.contrib.contenttypes",
    "rest_framework",
    "rest_framework.authtoken",
    "django_convmemory",
]
MIDDLEWARE = ["django.middleware.common.CommonMiddleware"]
DATABASES = {
    "default": {
        "ENGINE": "django.db.backends.postgresql",
        "NAME": os.environ.get("BENCH_DATABASE", "bench"),
        "HOST": "127.0.0.1",
        "USER": os.environ.get("BENCH_USER", "postgres"),
        "CONN_MAX_AGE": None,
    }
}
REST_FRAMEWORK = {"DEFAULT_AUTHENTICATION_CLASSES": ["rest_framework.authentication.TokenAuthentication"]}
_MODEL = {
    "BACKEND": "django_convmemory.chat_models.openai.OpenAIChatModel",
    "OPTIONS": {
        "model": "fake",
        "api_key": "none",
        "base_url": os.environ.get("BENCH_MODEL_URL", "http://127.0.0.1:9/v1"),
    },
}
CONVMEMORY = {
    "default": {"OPTIONS": {"max_token_limit": 2000}, "CHAT_MODEL": _MODEL},
    # A larger limit: messages that make a session of "default" due make none of these due.
    "wide": {"OPTIONS": {"max_token_limit": 20_000}, "CHAT_MODEL": _MODEL},
}
CELERY_BROKER_URL = os.environ.get("BENCH_BROKER", "redis://127.0.0.1:6379/")
