# Whatever imports the settings gets the Celery app with them, so that tasks are sent to its broker.
from mysite.celery import app as celery_app

__all__ = ["celery_app"]
