from django.conf import settings
from django.contrib import admin
from django.contrib.auth import views as auth
from django.urls import include, path

sign_in = auth.LoginView.as_view(extra_context={"demo": settings.DEMO_USER}, redirect_authenticated_user=True)

urlpatterns = [
    path("", include("chat.urls")),
    path("sign-in/", sign_in, name="login"),
    path("sign-out/", auth.LogoutView.as_view(), name="logout"),
    path("api/memory/", include("django_convmemory.api.urls")),
    path("admin/", admin.site.urls),
]
