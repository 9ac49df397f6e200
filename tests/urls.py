from django.contrib import admin
from django.urls import include, path

urlpatterns = [
    path("admin/", admin.site.urls),
    path("api/memory/", include("django_convmemory.api.urls")),
    path("v1/", include("django_convmemory.contrib.openai_conversations.urls")),
]
