from django.urls import include, path

from benchmarks.http_api import plain

urlpatterns = [
    path("api/", include("django_convmemory.api.urls")),
    path("plain/sessions/<str:session_id>/messages/", plain.Messages.as_view()),
    path("plain/sessions/<str:session_id>/context/", plain.Context.as_view()),
]
