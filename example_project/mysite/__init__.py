# Every process that imports the settings also imports the Celery app, so tasks are sent to its broker.
from mysite.celery import app as celery_app

__all__ = ["celery_app"]
