"""The site's Celery app and its WSGI application: ``gunicorn benchmarks.http_api.site:application``."""

import os

from celery import Celery
from django.core.wsgi import get_wsgi_application

os.environ.setdefault("DJANGO_SETTINGS_MODULE", "benchmarks.http_api.settings")
app = Celery("bench")
app.config_from_object("django.conf:settings", namespace="CELERY")
app.autodiscover_tasks()
application = get_wsgi_application()
