"""``path("v1/", include("django_convmemory.contrib.openai_conversations.urls"))``."""

from __future__ import annotations

from django.urls import URLPattern, path

from django_convmemory.contrib.openai_conversations import views

app_name = "convmemory_openai"

_CONVERSATION = "conversations/<str:session_id>"

# Without a slash at the end, as OpenAI's clients send them.
urlpatterns: list[URLPattern] = [
    path("conversations", views.ConversationList.as_view(), name="conversations"),
    path(_CONVERSATION, views.ConversationDetail.as_view(), name="conversation"),
    path(f"{_CONVERSATION}/items", views.ItemList.as_view(), name="items"),
    path(f"{_CONVERSATION}/items/<str:item_id>", views.ItemDetail.as_view(), name="item"),
]
