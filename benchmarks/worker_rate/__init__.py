"""How many sessions a second one Celery worker folds, and what a fold costs it."""
