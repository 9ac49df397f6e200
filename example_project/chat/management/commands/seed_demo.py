"""Fills the example with a demo user and some long conversations."""

from __future__ import annotations

import datetime as dt
import itertools
import json
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any

from django.conf import settings
from django.contrib.auth.models import User
from django.core.management.base import BaseCommand
from django.utils import timezone

from chat import diary
from django_convmemory.memory import memories
from django_convmemory.models import Session
from django_convmemory.operations.handles import SessionHandle

CONVERSATIONS = Path(settings.BASE_DIR) / "conversations"
DIARY = "diary"
TITLES = {
    DIARY: "A diary of three years",
    "trip-planning": "Slovenia with my mother",
    "order-refund": "Refund for damaged panniers",
    "hotel-zh": "苏州的酒店",
    "csv-import": "A CSV import that fails",
}
# Between two turns of a conversation, and between two days of the diary.
PAUSE, DAY = dt.timedelta(minutes=4), dt.timedelta(days=1)
# Days of the diary that are stored before a fold.
DAYS_AT_ONCE = 50


class Command(BaseCommand):
    """``manage.py seed_demo``. Existing rows are not changed."""

    help = "Create the demo user and the example conversations that do not exist yet."

    def handle(self, *args: Any, **options: Any) -> None:
        """Create the user and the conversations, and fold the conversations."""
        name = settings.DEMO_USER
        if not name:
            return
        user, created = User.objects.get_or_create(username=name, defaults={"is_staff": True, "is_superuser": True})
        if created:
            user.set_password(name)
            user.save()
        memory = memories["default"]
        for key, title in TITLES.items():
            if Session.objects.filter(owner=user, alias=memory.alias, key=key).exists():
                continue
            session = memory.session(key, owner=user)
            if key == DIARY:
                tell(session, diary.turns(), pause=DAY, at_once=DAYS_AT_ONCE)
            else:
                tell(session, turns_of(CONVERSATIONS / f"{key}.jsonl"), pause=PAUSE)
            row = Session.objects.get(name_hash=session.session_name.name_hash)
            Session.objects.filter(pk=row.pk).update(title=title)
            self.stdout.write(f"{title}: {row.last_position} messages, {row.current_version} versions of the summary")


def tell(session: SessionHandle, turns: Iterable[list[Any]], *, pause: dt.timedelta, at_once: int = 1) -> None:
    """Store the turns as if they were said ``pause`` after each other until now, and fold them meanwhile.

    So the first visit shows what a worker would have made of them.
    """
    told = list(turns)
    began = timezone.now() - len(told) * pause
    for first in range(0, len(told), at_once):
        times = [began + number * pause for number in range(first, first + at_once)]
        turn = [(message, at) for messages, at in zip(told[first:], times, strict=False) for message in messages]
        session.append(*[message for message, _ in turn], created_at=[at for _, at in turn])
        session.compact()


def turns_of(path: Path) -> Iterator[list[Any]]:
    """Yield the turns of a conversation in a file. Each begins with a message of the user."""
    messages = [json.loads(line) for line in path.read_text(encoding="utf-8").splitlines()]
    numbers = itertools.accumulate(message["role"] == "user" for message in messages)
    for _, turn in itertools.groupby(zip(numbers, messages, strict=True), key=lambda pair: pair[0]):
        yield [message for _, message in turn]
