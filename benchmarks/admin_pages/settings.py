"""A site with the admin. ``BENCH_DATABASE`` names its database on the local PostgreSQL."""

import os

SECRET_KEY = "the benchmark's own"
ALLOWED_HOSTS = ["*"]
USE_TZ = True
ROOT_URLCONF = "benchmarks.admin_pages.urls"
STATIC_URL = "static/"
DEFAULT_AUTO_FIELD = "django.db.models.BigAutoField"
INSTALLED_APPS = [
    "django.contrib.admin",
    "django.contrib.auth",
    "django.contrib.contenttypes",
    "django.contrib.messages",
    "django.contrib.sessions",
    "django.contrib.staticfiles",
    "rest_framework",
    "django_convmemory",
    "django_convmemory.contrib.partitions",
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
DATABASES = {
    "default": {
        "ENGINE": "django.db.backends.postgresql",
        "NAME": os.environ.get("BENCH_DATABASE", "bench"),
        "HOST": "127.0.0.1",
        "USER": os.environ.get("BENCH_USER", "postgres"),
    }
}
CONVMEMORY = {
    "default": {
        "OPTIONS": {"max_token_limit": 2000},
        "CHAT_MODEL": {"BACKEND": "django_convmemory.chat_models.extractive.ExtractiveChatModel"},
        "SCHEDULER": {"BACKEND": "django_convmemory.scheduling.NullScheduler"},
    },
}
