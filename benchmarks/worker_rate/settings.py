"""A site whose worker calls the model at ``OPENAI_BASE_URL``. ``BENCH_DATABASE`` is its PostgreSQL database."""

import os

SECRET_KEY = "the benchmark's own"
USE_TZ = True
INSTALLED_APPS = ["django.contrib.contenttypes", "django.contrib.auth", "django_convmemory"]
DATABASES = {
    "default": {
        "ENGINE": "django.db.backends.postgresql",
        "NAME": os.environ.get("BENCH_DATABASE", "bench"),
        "HOST": "127.0.0.1",
        "USER": "postgres",
        "OPTIONS": {"pool": {"min_size": 1, "max_size": 8}} if os.environ.get("BENCH_POOL") else {},
    }
}
CELERY_BROKER_URL = "redis://127.0.0.1:6379/11"
CELERY_BROKER_TRANSPORT_OPTIONS = {"global_keyprefix": f"{DATABASES['default']['NAME']}:"}
CELERY_BROKER_CONNECTION_RETRY_ON_STARTUP = True
CELERY_TASK_IGNORE_RESULT = True
CONVMEMORY = {
    "default": {
        "OPTIONS": {"max_token_limit": 1000},
        "CHAT_MODEL": {
            "BACKEND": "django_convmemory.chat_models.openai.OpenAIChatModel",
            "OPTIONS": {"model": "fake", "api_key": "none"},
        },
    },
}
