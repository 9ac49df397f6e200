"""Write the dump of this release, at the release and never again: ``make dump``. CONTRIBUTING.md says when.

``python -m tests.releases.write`` does it for the database that ``CONVMEMORY_TEST_DATABASE`` names.
"""

from __future__ import annotations

import os
import pathlib
import sys
import tempfile
import tomllib

import django


def fill() -> None:
    """Store a handful of sessions that have something in every table."""
    from django.contrib.auth import get_user_model

    from django_convmemory import models
    from django_convmemory.contrib.embeddings.reranker import EmbeddingReranker
    from django_convmemory.memory import memories
    from django_convmemory.messages import ChatMessage
    from django_convmemory.search import indexing
    from tests.conversations import call
    from tests.openai_server import Behaviour, OpenAIServer

    memory = memories["default"]
    trip = memory.session("trip", owner=get_user_model().objects.create_user("anna"))
    trip.append(ChatMessage.system("Answer briefly."))
    trip.append(ChatMessage.human("My number is 48151."), ChatMessage.ai("Noted."), idempotency_key="first")
    trip.append(ChatMessage.human("The password is quetzal."), ChatMessage.ai("I will keep quetzal to myself."))
    for day in ("Monday", "Tuesday", "Wednesday", "Thursday"):
        trip.append(
            ChatMessage.human(f"On {day} we watch a heron at the lake. " * 3, metadata={"day": day}),
            ChatMessage.ai(f"I noted the heron for {day}. " * 3),
            usage={"prompt_tokens": 90, "completion_tokens": 20},
        )
    assert trip.compact() == "published"
    trip.fork(9, key="copy", title="Only Monday and Tuesday")
    for position in (4, 5):
        trip.redact(position)
    trip.append(ChatMessage.ai(tool_calls=[call("open"), call("closed")]), ChatMessage.tool("Sunny.", "closed"))
    assert trip.compact() == "published"
    trip.update(title="A week at the lake", metadata={"colour": "blue"}, starred=True)

    visit = memory.session("visit", visitor="v-1")
    visit.create(title="A visitor's", idempotency_key="created")
    visit.answer("Which birds are there?", lambda turn: "Only a stork.", key="asked")
    visit.update(archived=True)
    item = {"type": "message", "role": "user", "content": "A kingfisher, as an item."}
    memory.append("everybody", ChatMessage.human(item["content"], item=item, format="responses"))
    memory.append("due", *[ChatMessage.human("This waits to be folded. " * 8) for _ in range(12)])

    with OpenAIServer() as server:
        server.default = Behaviour("embed")
        reranker = EmbeddingReranker(model="small", base_url=server.base_url, api_key="none")
        for session_id in models.Session.objects.ids():
            indexing.catch_up(memory.store, session_id)
            reranker.embed_next(session_id)


def main() -> None:
    """Write the file, unless it is there."""
    from django.core.management import call_command

    from tests.releases import databases

    version = tomllib.loads(pathlib.Path("pyproject.toml").read_text(encoding="utf-8"))["project"]["version"]
    path = databases.FOLDER / version / f"{os.environ.get('CONVMEMORY_TEST_DATABASE', 'sqlite')}.sql"
    if path.exists():
        sys.exit(f"{path.relative_to(databases.FOLDER)} exists. The dump of a release is never written again.")
    with tempfile.TemporaryDirectory() as folder, databases.empty(pathlib.Path(folder)):
        call_command("migrate", verbosity=0)
        fill()
        path.parent.mkdir(exist_ok=True)
        path.write_text(databases.dump(), encoding="utf-8")


if __name__ == "__main__":
    os.environ["DJANGO_SETTINGS_MODULE"] = "tests.settings"
    django.setup()
    main()
