"""The code of the documentation does what the pages say. Longer tests of a page have a module of their own."""

from __future__ import annotations

import contextlib
import datetime as dt
import io
import json
import pathlib
import re
import socket
import sys
import unittest
from types import ModuleType, SimpleNamespace
from typing import Any, cast

import pytest
from django.apps import AppConfig
from django.contrib.auth.models import AnonymousUser, Group, User
from django.contrib.auth.signals import user_logged_in
from django.contrib.sessions.backends.signed_cookies import SessionStore
from django.contrib.staticfiles.handlers import ASGIStaticFilesHandler
from django.core.checks import run_checks
from django.core.management import call_command, find_commands
from django.db import connections, transaction
from django.db.utils import ConnectionHandler
from django.templatetags.static import static
from django.test import AsyncRequestFactory, Client, RequestFactory
from django.utils import timezone

from benchmarks import evaluate
from django_convmemory import memory
from django_convmemory.memory import memories
from django_convmemory.messages import ChatMessage
from django_convmemory.models import Message, Session
from django_convmemory.prompts import DefaultPrompts
from django_convmemory.testing import ScriptedMemories
from tests import event_loops, projects
from tests.openai_server import Behaviour, OpenAIServer, completion

FOLDER = pathlib.Path(__file__).parents[2] / "docs/guides"
# The others have tests of their own: test_conversations, test_testing_in_projects.
GUIDES = [path.stem for path in FOLDER.glob("*.md") if path.stem not in {"conversations", "testing"}]
PAGES = {path.stem: path.read_text(encoding="utf-8") for path in FOLDER.parent.glob("*/*.md")}


def blocks(page: str) -> list[str]:
    return re.findall(r"```python\n(.*?)```", PAGES[page], re.DOTALL)


def code_of(page: str, name: str) -> str:
    """Return the code that a page has for the file ``name``."""
    [code] = [block for block in blocks(page) if block.startswith(f"# {name}")]
    return code


def module_of(page: str, name: str, **names: Any) -> dict[str, Any]:
    """Run the code that a page has for the file ``name``, which has these names already."""
    namespace: dict[str, Any] = {"__name__": name.removesuffix(".py"), **names}
    exec(code_of(page, name), namespace)  # noqa: S102
    return namespace


def test_the_code_of_every_page_is_run() -> None:
    here = pathlib.Path(__file__)
    files = [*here.parent.glob("test_*.py"), *(here.parents[2] / "integration_tests").glob("*/test_*.py")]
    tests = "".join(path.read_text(encoding="utf-8") for path in files)
    for name in GUIDES:
        for code in blocks(name):
            named = re.match(r"# (\w+\.py)", code)
            assert named, (name, code)
            assert f'"{name}", "{named[1]}"' in tests or f"{name}.md" in tests, (name, named[1])


def problems(settings: Any, page: str, name: str) -> list[str | None]:
    """Use the memories of a page, and return the ids of the checks' messages."""
    settings.CONVMEMORY = module_of(page, name)["CONVMEMORY"]
    return [message.id for message in run_checks(tags=["convmemory"])]


@pytest.mark.parametrize(
    ("page", "name"),
    [
        ("assistants", "settings.py"),
        ("embeddings", "settings.py"),
        ("prompt-caches", "settings.py"),
        ("providers", "settings.py"),
        ("settings", "settings.py"),
        ("tools-and-images", "settings.py"),
    ],
)
def test_the_memories_of_a_page_pass_the_checks(settings: Any, page: str, name: str) -> None:
    assert problems(settings, page, name) == []


def test_development_without_a_broker(settings: Any, ann: User) -> None:
    settings.DEBUG = True
    assert problems(settings, "development", "settings_development.py") == []
    session = memories["default"].session("main", owner=ann)
    while not session.append(ChatMessage.human("On our tour we see a castle and a museum of trains.")).due:
        pass
    assert session.compact() == "published"
    settings.DEBUG = False
    assert [message.id for message in run_checks(tags=["convmemory"])] == ["convmemory.W013"]


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
    databases = module_of("production", "settings.py, after pip")["DATABASES"]
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
    replies = [module_of("costs", "replies.py")["reply"](ann, f"{number} " * 20) for number in range(12)]
    assert {text for text, _ in replies} == {"They counted."}
    convmemory.reply("They counted.")
    assert convmemory.run() == ["published"]
    spent = module_of("costs", "spending.py")["spent"](ann, since)
    replied = Message.objects.filter(role="assistant").order_by("position")
    reported = [message.usage["total_tokens"] for message in replied]
    assert (len(reported), spent["reply_tokens"]) == (12, sum(reported))
    assert [tokens for _, tokens in replies] == reported
    assert module_of("costs", "spending.py")["spent"](User.objects.create_user("berta"), since) == {
        "reply_tokens": 0,
        "summary_cost": 0,
    }


def test_costs_have_prices(settings: Any, ann: User, model: OpenAIServer) -> None:
    settings.CONVMEMORY = module_of("assistants", "settings.py")["CONVMEMORY"]
    session = memories["default"].session("main", owner=ann)
    session.append(*[ChatMessage.human("memory " * 40) for _ in range(60)])
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
    page = re.findall(r"```html\n(.*?)```", PAGES["react"], re.DOTALL)[0]
    loaders = [("django.template.loaders.locmem.Loader", {"react_chat.html": page})]
    engine = {"BACKEND": "django.template.backends.django.DjangoTemplates", "OPTIONS": {"loaders": loaders}}
    settings.TEMPLATES = [engine]
    urls: Any = ModuleType("urls")
    urls.urlpatterns = module_of("react", "urls.py")["urlpatterns"]
    settings.ROOT_URLCONF = urls
    client = Client()
    assert client.get("/react-chat/").headers["Location"].startswith(f"{settings.LOGIN_URL}?")
    client.force_login(ann)
    shown = client.get("/react-chat/")
    assert f'src="{static("chat.js")}"' in shown.content.decode()
    assert "csrftoken" in shown.cookies
    assert client.get("/api/memory/sessions/").status_code == 200


def test_the_application_of_the_front_end_serves_static_files(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("DJANGO_SETTINGS_MODULE", "tests.settings")
    application = module_of("react", "asgi.py")["application"]
    assert isinstance(application, ASGIStaticFilesHandler)
    assert application._should_handle("/static/chat.js")


# The pages about requests, models and contexts.


@pytest.mark.django_db(transaction=True)
@pytest.mark.parametrize("logged_in", [True, False])
def test_async(logged_in: bool, model: OpenAIServer) -> None:
    view = module_of("async", "async_views.py")["chat"]
    ada = User.objects.create_user("ada")
    browser = SessionStore()

    def ask(text: str, key: str = "once") -> tuple[int, dict[str, Any]]:
        request = AsyncRequestFactory().post("/", {"text": text}, headers={"Idempotency-Key": key})
        request.session, request.auser = browser, auser
        response = event_loops.run(view(request))
        return response.status_code, json.loads(response.content)

    async def auser() -> User | AnonymousUser:
        return ada if logged_in else AnonymousUser()

    model.queue(Behaviour("unauthorized"))
    model.default = Behaviour(text="Hi!")
    assert ask("Hello!")[0] == 503
    assert [ask("Hello!") for _ in range(2)] == [(200, {"text": "Hi!"})] * 2
    assert len(model.log) == 2
    session = Session.objects.get()
    assert (session.owner, bool(session.visitor)) == ((ada, False) if logged_in else (None, True))
    assert [ask("Something else.")[0], ask(" ", "2")[0], ask("Hello!", "")[0]] == [422, 400, 400]
    assert [message.content for message in Message.objects.order_by("position")] == ["Hello!", "Hi!"]


@pytest.mark.django_db
def test_development_in_eager_mode(settings: Any) -> None:
    page = module_of("development", "settings_tests.py")
    settings.CONVMEMORY = page["CONVMEMORY"]
    case = module_of("development", "test_folding.py")["FoldingTests"]
    result = unittest.TestResult()
    with projects.project("") as made:
        assert "convmemory.W008" in [problem.id for problem in run_checks(databases=["default"])]
        made.app.conf.task_always_eager = page["CELERY_TASK_ALWAYS_EAGER"]
        ids = {problem.id for problem in run_checks(databases=["default"])}
        # Tests run with DEBUG off.
        assert ids & {"convmemory.W002", "convmemory.W008"} == {"convmemory.W002"}
        unittest.defaultTestLoader.loadTestsFromTestCase(case).run(result)
    assert (result.testsRun, result.failures, result.errors) == (1, [], [])


def test_partitions() -> None:
    [name] = module_of("partitions", "settings.py", INSTALLED_APPS=[])["INSTALLED_APPS"]
    assert find_commands(f"{AppConfig.create(name).path}/management") == ["convmemory_partition"]
    assert set(re.findall(r"manage\.py (\w+)", PAGES["partitions"])) == {"convmemory_partition"}


def test_prompt_caches(settings: Any, ann: User) -> None:
    settings.CONVMEMORY = module_of("prompt-caches", "settings.py")["CONVMEMORY"]
    session = memories["default"].session("main", owner=ann)
    firsts = []
    for _ in range(40):
        session.append(ChatMessage.human("word " * 500))
        firsts.append(session.load().parts[0].position)
    assert 5 < len(set(firsts)) < 13

    cached_share = module_of("prompt-caches", "caches.py")["cached_share"]
    since = timezone.now() - dt.timedelta(hours=1)
    assert cached_share(ann, since) == 0.0
    for usage in (
        {"prompt_tokens": 3000, "prompt_tokens_details": {"cached_tokens": 2048}},
        {"prompt_tokens": 1000, "prompt_tokens_details": None},
        {"prompt_tokens": 1000},
        None,
    ):
        session.append(ChatMessage.ai("Yes."), usage=usage)
    assert cached_share(ann, since) == 2048 / 5000


def test_old_results(settings: Any, ann: User) -> None:
    settings.CONVMEMORY = module_of("tools-and-images", "settings.py")["CONVMEMORY"]
    session = memories["default"].session("main", owner=ann)
    for number in range(20):
        call = {"id": f"c{number}", "type": "function", "function": {"name": "find_train", "arguments": "{}"}}
        session.append(ChatMessage.ai(tool_calls=[call]), ChatMessage.tool(f"Train {number}", f"c{number}"))
    results = [message.text for message in session.load() if message.role == "tool"]
    assert results[-5:] == [f"Train {number}" for number in range(15, 20)]
    assert 11 <= results.count("[This old result is not shown any more.]") <= 15


PEANUTS = "My daughter Ines is allergic to peanuts."


def test_recall(settings: Any, ann: User, model: OpenAIServer, convmemory: ScriptedMemories) -> None:
    """The allergy was folded long ago. A search, a quote and the model's tool find it."""
    session = memories["default"].session("main", owner=ann)
    session.append({"role": "user", "content": PEANUTS}, {"role": "assistant", "content": "I will remember it."})
    for number in range(40):
        session.append({"role": "user", "content": f"Tell me about the weather in place {number}. " + "word " * 40})
    convmemory.reply("They talked of the weather.")
    assert convmemory.run() == ["published"]
    assert session.load().covered > 2
    question = {"role": "user", "content": "What is Ines allergic to?"}

    lines = module_of("recall", "finding.py")["find"](ann, question["content"])
    assert lines[0] == f"1, {session.history()[0].created_at:%d %B}, user: {PEANUTS}"
    session.append(question)
    *_, quotes, last = module_of("recall", "recalling.py")["prompt"](session)
    introduction, fence, first, *_ = quotes["content"].splitlines()
    assert last == question
    assert introduction in PAGES["recall"]
    assert fence.startswith("<quoted-")
    assert first.endswith(f"[user] {PEANUTS}")
    assert f"[user] {PEANUTS}" in PAGES["recall"]

    function = {"name": "search_history", "arguments": '{"query": "allergies of Ines, allergic"}'}
    calls = [{"id": "c", "type": "function", "function": function}]
    model.queue(Behaviour("raw", body=completion(Behaviour(text=""), {}, content=None, tool_calls=calls)))
    model.default = Behaviour(text="Peanuts.")
    ask = module_of("recall", "history_tool.py")["ask"]
    assert session.answer("What may Ines not eat?", ask).text == "Peanuts."
    result = model.log[1].body["messages"][-1]
    assert result["role"] == "tool"
    assert PEANUTS in result["content"]


# The pages about summaries.


def configure(settings: Any, model: OpenAIServer, page: str, name: str) -> None:
    """Use the memories of a page, with the model server of the tests, and without Celery."""
    options = {"model": "m", "api_key": "k", "base_url": model.base_url}
    memories_of_page = module_of(page, name)["CONVMEMORY"]
    for alias in memories_of_page.values():
        alias["OPTIONS"] = {**alias.get("OPTIONS", {}), "max_token_limit": 100}
        alias["CHAT_MODEL"] = {"BACKEND": "django_convmemory.chat_models.openai.OpenAIChatModel", "OPTIONS": options}
        alias["SCHEDULER"] = {"BACKEND": "django_convmemory.scheduling.NullScheduler"}
    settings.CONVMEMORY = memories_of_page
    assert run_checks(tags=["convmemory"]) == []


def install(monkeypatch: pytest.MonkeyPatch, path: str, names: dict[str, Any]) -> None:
    """Make ``names`` importable as the module ``path`` of the reader's site."""
    for module_path, content in ((path.rpartition(".")[0], {}), (path, names)):
        module = ModuleType(module_path)
        vars(module).update(content)
        monkeypatch.setitem(sys.modules, module_path, module)


def fold(alias: str, model: OpenAIServer) -> tuple[str, str]:
    """Fold a session. Return the texts of the prompt."""
    folded = memories[alias]
    folded.append("lesson", ChatMessage.human("I think that x is 4711. " * 20), ChatMessage.ai("Why? " * 60))
    assert folded.compact("lesson") == "published"
    system, user = (message["content"] for message in model.log[-1].body["messages"])
    return system, user


def test_summaries(settings: Any, db: None, model: OpenAIServer, monkeypatch: pytest.MonkeyPatch) -> None:
    configure(settings, model, "summaries", "settings.py")
    system, _ = fold("default", model)
    assert system.startswith(DefaultPrompts.system)
    assert system.endswith("Never write down card numbers or passwords.")

    install(monkeypatch, "tutor.prompts", module_of("summaries", "prompts.py"))
    configure(settings, model, "summaries", "settings_tutor.py")
    system, user = fold("tutor", model)
    assert system.startswith("You write a tutor's notes about a pupil who learns algebra.")
    assert " lesson>\n[day] " in user
    assert "\n[user] I think that x is 4711." in user
    assert user.endswith(" words.")
    shorter = memories["tutor"].requests.shorten("A long summary.", max_tokens=100).messages[1].text
    assert shorter.startswith("<quoted-")
    assert "A long summary." in shorter

    install(monkeypatch, "shop.chinese_prompts", module_of("summaries", "chinese_prompts.py"))
    configure(settings, model, "summaries", "settings_chinese.py")
    system, user = fold("default", model)
    assert system.startswith("你负责维护一段对话的记忆。")
    assert "请写出新的摘要，最多 " in user
    assert str(memories["default"].load("lesson").to_openai()[0].get("content")).startswith("此前对话的摘要：")


@pytest.mark.django_db
def test_evaluating(settings: Any, model: OpenAIServer, tmp_path: pathlib.Path) -> None:
    configure(settings, model, "summaries", "settings.py")
    fold("default", model)
    memories["default"].append("lesson", ChatMessage.human("I mean 4712. " * 40))
    exported = tmp_path / "chats.jsonl"
    with exported.open("w") as file:
        call_command("convmemory_export", alias=["default"], stdout=file)
    Session.objects.all().delete()
    configure(settings, model, "evaluating", "settings.py")
    output = io.StringIO()
    for alias in ("plain", "strict"):
        call_command("convmemory_import", str(exported), alias=alias, stdout=io.StringIO(), stderr=io.StringIO())
    call_command("convmemory_sweep", inline=True, stdout=io.StringIO())
    with contextlib.redirect_stdout(output):
        evaluate.main(["--limit", "10000"])
    for alias in ("plain", "strict"):
        assert f"{alias}: 1 session with a summary, " in output.getvalue()
    prompts = {memories[alias].requests.prompt_hash[:8] for alias in ("plain", "strict")}
    assert len(prompts) == 2
    assert all(f"prompt {prompt}: kept " in output.getvalue() for prompt in prompts)


# The reference.


def in_code() -> list[str]:
    """Return the code of the memories that are built in code: first what all of it needs."""
    _settings, *code = blocks("settings")
    return code


@pytest.mark.parametrize("code", in_code()[1:])
def test_memories(code: str) -> None:
    namespace: dict[str, Any] = {}
    exec(in_code()[0], namespace)  # noqa: S102  the imports
    exec(code, namespace)  # noqa: S102


def test_every_memory_has_a_row_and_an_example() -> None:
    named = re.findall(r"^\| \[`(\w+)`\]\(#", PAGES["settings"], re.MULTILINE)
    assert sorted(named) == [
        name for name in memory.__all__ if name.endswith("Memory") and name != "ConversationMemory"
    ]
    assert all(any(f"{name}(" in code for code in in_code()[1:]) for name in named)


@pytest.mark.only_on("postgresql")
def test_performance(db: None) -> None:
    """Statements stay prepared."""
    here = connections["default"].settings_dict
    databases: dict[str, dict[str, Any]] = {
        "default": {name: here[name] for name in ("ENGINE", "NAME", "HOST", "PORT", "USER", "PASSWORD")}
    }
    module_of("performance", "settings.py", DATABASES=databases)
    connection = ConnectionHandler(databases)["default"]
    try:
        with connection.cursor() as cursor:
            for number in range(8):
                cursor.execute("SELECT %s::int", [number])
            cursor.execute("SELECT count(*) FROM pg_prepared_statements")
            assert cursor.fetchone()[0] > 0
    finally:
        connection.close()
