"""Measures how many sessions a second a Celery worker folds, and the processor time of a fold."""
