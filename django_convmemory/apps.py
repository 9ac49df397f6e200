from django.apps import AppConfig
from django.core.checks import register
from django.core.signals import setting_changed
from django.utils.translation import gettext_lazy as _


class ConvMemoryConfig(AppConfig):
    name = "django_convmemory"
    label = "convmemory"
    verbose_name = _("Conversation memory")
    default_auto_field = "django.db.models.BigAutoField"

    def ready(self) -> None:
        from django_convmemory import checks
        from django_convmemory.api.conf import check_settings as check_api

        checks.register()
        register(check_api)
        setting_changed.connect(_forget, dispatch_uid="convmemory.forget")


def _forget(*, setting: str, **kwargs: object) -> None:
    if setting in ("CONVMEMORY", "DATABASES", "DATABASE_ROUTERS", "TIME_ZONE"):
        from django_convmemory.memory import memories

        memories.forget()
