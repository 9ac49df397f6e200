"""Fills the example with a demo user and some long conversations."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from django.conf import settings
from django.contrib.auth.models import User
from django.core.management.base import BaseCommand

from django_convmemory.memory import memories
from django_convmemory.models import Session

CONVERSATIONS = Path(settings.BASE_DIR) / "conversations"
TITLES = {
    "trip-planning": "Slovenia with my mother",
    "order-refund": "Refund for damaged panniers",
    "hotel-zh": "苏州的酒店",
    "csv-import": "A CSV import that fails",
}


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
            lines = (CONVERSATIONS / f"{key}.jsonl").read_text(encoding="utf-8").splitlines()
            session.append(*[json.loads(line) for line in lines])
            Session.objects.filter(name_hash=session.session_name.name_hash).update(title=title)
            # Folded at once, so that the first visit shows summaries.
            session.compact()
            self.stdout.write(f"{title}: {len(lines)} messages")
