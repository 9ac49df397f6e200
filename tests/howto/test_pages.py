"""The code of the how-to pages does what the pages say."""

from __future__ import annotations

import datetime as dt
import json
import pathlib
import re
import socket
import sys
from types import ModuleType, SimpleNamespace
from typing import Any, cast

import pytest
from django.contrib.auth.models import AnonymousUser, Group, User
from django.contrib.auth.signals import user_logged_in
from django.contrib.sessions.backends.signed_cookies import SessionStore
from django.contrib.staticfiles.handlers import ASGIStaticFilesHandler
from django.core.checks import run_checks
from django.core.management import call_command
from django.db import connections, transaction
from django.db.utils import ConnectionHandler
from django.templatetags.static import static
from django.test import Client, RequestFactory
from django.utils import timezone

from django_convmemory.api import conf, throttles
from django_convmemory.memory import memories
from django_convmemory.messages import ChatMessage
from django_convmemory.models import Message, Session
from django_convmemory.testing import ScriptedMemories
from tests.openai_server import Behaviour, OpenAIServer

FOLDER = pathlib.Path(__file__).parents[2] / "docs/howto"
PAGES = {path.stem: path.read_text(encoding="utf-8") for path in FOLDER.glob("*.md")}


def code_of(page: str, name: str) -> str:
    """Return the code that a page has for the file ``name``."""
    blocks = re.findall(r"```python\n(.*?)```", PAGES[page], re.DOTALL)
    [code] = [block for block in blocks if block.startswith(f"# {name}")]
    return str(code)


def module_of(page: str, name: str) -> dict[str, Any]:
    """Run the code that a page has for the file ``name``."""
    namespace: dict[str, Any] = {"__name__": name.removesuffix(".py")}
    exec(code_of(page, name), namespace)  # noqa: S102
    return namespace


def test_the_code_of_every_page_is_run() -> None:
    here = pathlib.Path(__file__)
    files = [*here.parent.glob("test_*.py"), *(here.parents[2] / "integration_tests").glob("*/test_*.py")]
    tests = "".join(path.read_text(encoding="utf-8") for path in files)
    for name, page in PAGES.items():
        for code in re.findall(r"```python\n(.*?)```", page, re.DOTALL):
            named = re.match(r"# (\w+\.py)", code)
            assert named, (name, code)
            assert f'"{name}", "{named[1]}"' in tests or f"{name}.md" in tests, (name, named[1])


@pytest.fixture
def ann(db: None) -> User:
    return User.objects.create_user("ann")


def test_links_lead_somewhere() -> None:
    for name, page in PAGES.items():
        for link in re.findall(r"\]\((?!https:)([^)#]+)", page):
            assert (FOLDER / link).exists(), (name, link)


def test_development_without_celery(settings: Any, ann: User) -> None:
    settings.DEBUG = True
    settings.CONVMEMORY = module_of("development", "settings_development.py")["CONVMEMORY"]
    assert [message for message in run_checks() if message.id and message.id.startswith("convmemory.")] == []
    session = memories["default"].session("main", owner=ann)
    for number in range(20):
        session.append(ChatMessage.human(f"In stop {number} of our tour we see a castle and a museum of trains."))
    assert session.load().summary
    settings.DEBUG = False
    assert [message.id for message in run_checks() if message.id and message.id.startswith("convmemory.")] == [
        "convmemory.W002"
    ]


def test_several_assistants(settings: Any, ann: User) -> None:
    settings.CONVMEMORY = module_of("assistants", "settings.py")["CONVMEMORY"]
    conversation = module_of("assistants", "views.py")["conversation"]
    for assistant in ("default", "tutor", "search"):
        conversation(SimpleNamespace(user=ann), assistant).append(ChatMessage.human(assistant))
    assert sorted(Session.objects.values_list("alias", "key")) == [
        (alias, "main") for alias in ("default", "search", "tutor")
    ]
    memory_of = module_of("assistants", "plans.py")["memory_of"]
    assert memory_of(ann).alias == "default"
    Group.objects.create(name="Premium").user_set.add(ann)
    assert memory_of(ann).alias == "tutor"


def test_transactions(ann: User, monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("shop", "shop.models"):
        monkeypatch.setitem(sys.modules, name, cast("ModuleType", SimpleNamespace(Order=SimpleNamespace)))
    refund = module_of("transactions", "orders.py")["refund"]
    saved: list[bool] = []
    order = SimpleNamespace(pk=7, refunded=False, save=lambda: saved.append(True))
    with transaction.atomic():
        refund(order, ann, "Refunded.")
        transaction.set_rollback(True)
    assert not Message.objects.exists()
    refund(order, ann, "Refunded.")
    assert Message.objects.get().content == "Refunded."

    request = RequestFactory().post("/", {"text": "hello"})
    request.user = ann
    view = module_of("transactions", "views.py")["say"]
    assert view(request).content == b'{"position": 1}'
    empty = RequestFactory().post("/", {"text": " "})
    empty.user = ann
    assert view(empty).status_code == 400
    assert "default" in view._non_atomic_requests


def test_tools_and_images(ann: User) -> None:
    context = module_of("tools-and-images", "tools.py")["look_up"](ann, "Which train?", "https://a.example/b.png")
    assert [message.role for message in context] == ["user", "assistant", "tool"]
    assert context.to_openai()[0]["content"][1]["image_url"]["detail"] == "low"


def test_limits() -> None:
    rates = module_of("limits", "settings.py")["REST_FRAMEWORK"]["DEFAULT_THROTTLE_RATES"]
    scopes = {made.scope for made in vars(throttles).values() if getattr(made, "scope", None)}
    assert rates.keys() <= scopes
    for key in ("MAX_BODY_BYTES", "MAX_MESSAGES"):
        assert f"`{key}`" in PAGES["limits"]
        assert key in conf.KEYS


def idle_seconds_of(connection: Any) -> int:
    """How long a connection to PostgreSQL may be idle before the kernel asks whether the server is there."""
    with socket.fromfd(connection.fileno(), socket.AF_INET, socket.SOCK_STREAM) as connected:
        return int(connected.getsockopt(socket.IPPROTO_TCP, socket.TCP_KEEPIDLE))


def server_settings_of(page: str, file: str) -> dict[str, str]:
    """Return the settings that a page has for the configuration file of a database."""
    [text] = re.findall(rf"```ini\n# {re.escape(file)}\n(.*?)```", PAGES[page], re.DOTALL)
    return dict(re.findall(r"^(\w+) = (\w+)$", text, re.MULTILINE))


@pytest.mark.only_on("postgresql")
@pytest.mark.django_db
def test_production_keepalives_of_postgresql() -> None:
    settings = server_settings_of("production", "postgresql.conf")
    assert len(settings) == 4
    with connections["default"].cursor() as cursor:
        for name, value in settings.items():
            cursor.execute("SELECT set_config(%s, %s, TRUE)", [name, value])
            # Without a TCP connection, the server has no keepalives.
            cursor.execute(
                "SELECT inet_server_addr() IS NULL OR setting = %s FROM pg_settings WHERE name = %s", [value, name]
            )
            assert cursor.fetchone() == (True,), name


@pytest.mark.only_on("mariadb")
@pytest.mark.django_db
def test_production_keepalives_of_mariadb() -> None:
    settings = server_settings_of("production", "mariadb.cnf")
    assert len(settings) == 4
    with connections["default"].cursor() as cursor:
        for name, value in settings.items():
            cursor.execute(
                "SELECT numeric_min_value <= %s AND %s <= numeric_max_value FROM information_schema.system_variables "
                "WHERE variable_name = %s",
                [int(value), int(value), name],
            )
            assert cursor.fetchone() == (1,), name
    [options] = re.findall(r'`("connect_timeout": [^`]*)`', PAGES["production"])
    here = connections["default"].settings_dict
    given = {"default": here | {"OPTIONS": here["OPTIONS"] | json.loads(f"{{{options}}}")}}
    connection = ConnectionHandler(given)["default"]
    try:
        with connection.cursor() as cursor:
            cursor.execute("SELECT 1")
    finally:
        connection.close()


@pytest.mark.only_on("postgresql")
def test_production_with_a_pool(db: None) -> None:
    """A closed connection returns to the pool, and is used again."""
    here = connections["default"].settings_dict
    databases = module_of("production", "settings.py")["DATABASES"]
    databases["default"] |= {name: here[name] for name in ("NAME", "HOST", "PORT", "USER", "PASSWORD")}
    connection = ConnectionHandler(databases)["default"]
    served = set()
    try:
        for _ in range(30):
            with connection.cursor() as cursor:
                cursor.execute("SELECT pg_backend_pid()")
                served.add(cursor.fetchone()[0])
            connection.close()
        assert len(served) < 30
        with connection.cursor() as cursor:
            assert idle_seconds_of(cursor.connection) == 10
        connection.close()
    finally:
        connection.close_pool()  # type: ignore[attr-defined]


def test_costs(settings: Any, ann: User, convmemory: ScriptedMemories, model: OpenAIServer) -> None:
    model.default = Behaviour(text="They counted.")
    since = timezone.now()
    for number in range(12):
        assert module_of("costs", "replies.py")["reply"](ann, f"{number} " * 20) == "They counted."
    convmemory.reply("They counted.")
    assert convmemory.run() == ["published"]
    spent = module_of("costs", "spending.py")["spent"](ann, since)
    reported = [message.usage["total_tokens"] for message in Message.objects.filter(role="assistant")]
    assert (len(reported), spent["reply_tokens"]) == (12, sum(reported))
    assert module_of("costs", "spending.py")["spent"](User.objects.create_user("berta"), since) == {
        "reply_tokens": 0,
        "summary_cost": 0,
    }


def test_costs_have_prices(settings: Any, ann: User, model: OpenAIServer) -> None:
    settings.CONVMEMORY = module_of("costs", "settings.py")["CONVMEMORY"]
    session = memories["default"].session("main", owner=ann)
    session.append(*[ChatMessage.human("word " * 40) for _ in range(60)])
    assert session.compact() == "published"
    spent = module_of("costs", "spending.py")["spent"](ann, timezone.now() - dt.timedelta(hours=1))
    assert spent["summary_cost"] > 0


def test_visitors(ann: User) -> None:
    memories["default"].session("main", owner=ann).append(ChatMessage.human("I was here before."))
    say = module_of("visitors", "views.py")["say"]
    request = RequestFactory().post("/", {"text": "And before?"})
    request.session, request.user = SessionStore(), AnonymousUser()
    assert say(request).status_code == 200
    assert len(request.session["visitor"]) == 32
    empty = RequestFactory().post("/", {})
    empty.session, empty.user = SessionStore(), AnonymousUser()
    assert say(empty).status_code == 400
    receiver = module_of("visitors", "login.py")["bring_conversations_along"]
    try:
        user_logged_in.send(User, request=request, user=ann)
    finally:
        user_logged_in.disconnect(receiver)

    assert "visitor" not in request.session
    assert request.session["conversation"] == "main (2)"
    chat = memories["default"].session("main (2)", owner=ann)
    assert chat.load().to_text() == "user: And before?"


def test_deleting(ann: User, tmp_path: pathlib.Path) -> None:
    people = module_of("deleting", "people.py")
    memories["default"].session("main", owner=ann).append(ChatMessage.human("What is Rust?"))
    memories["default"].session("main", visitor="v").append(ChatMessage.human("What is Rust?"))

    people["export"](ann, tmp_path / "ann.jsonl")
    assert json.loads((tmp_path / "ann.jsonl").read_text("utf-8"))["owner"] == "ann"
    assert people["forget"](ann) == people["forget_visitor"]("v") == 1

    memories["default"].session("main", owner=ann).append(ChatMessage.human("What is Rust?"))
    ann.delete()
    assert not Session.objects.exists()
    assert not Message.objects.exists()
    [command] = re.findall(r"```sh\npython manage\.py (.*)\n```", PAGES["deleting"])
    call_command(*command.split(), verbosity=0)


def test_the_front_end_is_served(settings: Any, ann: User) -> None:
    page = re.findall(r"```html\n(.*?)```", PAGES["typescript"], re.DOTALL)[0]
    loaders = [("django.template.loaders.locmem.Loader", {"chat.html": page})]
    engine = {"BACKEND": "django.template.backends.django.DjangoTemplates", "OPTIONS": {"loaders": loaders}}
    settings.TEMPLATES = [engine]
    urls: Any = ModuleType("urls")
    urls.urlpatterns = module_of("typescript", "urls.py")["urlpatterns"]
    settings.ROOT_URLCONF = urls
    client = Client()
    assert client.get("/chat/").headers["Location"].startswith(f"{settings.LOGIN_URL}?")
    client.force_login(ann)
    shown = client.get("/chat/")
    assert f'src="{static("chat.js")}"' in shown.content.decode()
    assert "csrftoken" in shown.cookies
    assert client.get("/api/memory/sessions/").status_code == 200


def test_the_application_of_the_front_end_serves_static_files(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("DJANGO_SETTINGS_MODULE", "tests.settings")
    application = module_of("typescript", "asgi.py")["application"]
    assert isinstance(application, ASGIStaticFilesHandler)
    assert application._should_handle("/static/chat.js")
