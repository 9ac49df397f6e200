from django.apps import AppConfig


class ChatConfig(AppConfig):
    name = "chat"

    def ready(self) -> None:
        """Let users adopt their conversations as visitors when they sign in."""
        from django.contrib.auth.signals import user_logged_in

        from django_convmemory.api.scopes import adopt_at_login

        user_logged_in.connect(adopt_at_login, dispatch_uid="chat.adopt")
