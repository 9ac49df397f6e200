from django.contrib import admin
from django.urls import include, path

urlpatterns = [
    path("admin/", admin.site.urls),
    path("api/memory/", include("django_convmemory.api.urls")),
]
