"""The addresses of the views: ``path("convmemory/", include("django_convmemory.contrib.monitoring.urls"))``."""

from django.urls import path

from django_convmemory.contrib.monitoring import views

app_name = "convmemory_monitoring"

urlpatterns = [
    path("metrics/", views.metrics, name="metrics"),
    path("health/", views.health, name="health"),
    path("health/workers/", views.workers, name="workers"),
]
