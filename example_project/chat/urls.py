from django.urls import path

from chat import replies, views

app_name = "chat"

urlpatterns = [
    path("", views.index, name="index"),
    path("begin/", views.begin, name="begin"),
    path("play/", views.play, name="play"),
    path("search/", views.search, name="search"),
    path("c/<uuid:public_id>/", views.conversation, name="conversation"),
    path("c/<uuid:public_id>/messages/", views.messages, name="messages"),
    path("c/<uuid:public_id>/find/", views.find, name="find"),
    path("c/<uuid:public_id>/panel/", views.panel, name="panel"),
    path("c/<uuid:public_id>/versions/<int:number>/", views.version, name="version"),
    path("c/<uuid:public_id>/recalled/<int:position>/", views.recalled, name="recalled"),
    path("c/<uuid:public_id>/send/", views.send, name="send"),
    path("c/<uuid:public_id>/reply/", replies.reply, name="reply"),
    path("c/<uuid:public_id>/lines/<int:number>/", views.line, name="line"),
    path("c/<uuid:public_id>/fork/<int:position>/", views.fork, name="fork"),
    path("c/<uuid:public_id>/redact/<int:position>/", views.redact, name="redact"),
    path("c/<uuid:public_id>/redact-replies/", views.redact_replies, name="redact-replies"),
    path("c/<uuid:public_id>/rename/", views.rename, name="rename"),
    path("c/<uuid:public_id>/delete/", views.delete, name="delete"),
]
