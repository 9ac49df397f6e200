"""The data of the pictures: conversations that were folded, that fail, and that use tools."""

from __future__ import annotations

import datetime as dt
import random
from decimal import Decimal

from django.contrib.auth.models import User
from django.utils import timezone

from django_convmemory import models
from django_convmemory.memory import memories
from django_convmemory.messages import ChatMessage
from django_convmemory.operations.handles import SessionHandle
from django_convmemory.testing import ScriptedMemories

SUMMARIES = [
    (
        "Maya plans nine days in Portugal in May with her father Jonas (71, bad knee: few stairs, no long "
        "walks). Budget 2,400 euros for both without flights. They land in Lisbon on 9 May. She wants tiles, "
        "fado and one day by the sea; he wants trains and the navy museum in Belém."
    ),
    (
        "Maya plans nine days in Portugal in May with her father Jonas (71, bad knee: few stairs, no long "
        "walks; eats no shellfish). Budget 2,400 euros for both without flights, 640 of it spent on the hotel "
        "in Baixa, which has a lift. They land in Lisbon on 9 May at 14:20. Day 2 is Belém with the navy "
        "museum, day 3 the tile museum. She wants fado and one day by the sea; he wants trains."
    ),
    (
        "Maya plans nine days in Portugal in May with her father Jonas (71, bad knee: few stairs, no long "
        "walks; eats no shellfish). Budget 2,400 euros for both without flights, 640 of it spent on the hotel "
        "in Baixa, which has a lift. They land in Lisbon on 9 May at 14:20. Day 2 is Belém with the navy "
        "museum, day 3 the tile museum, day 4 fado in Alfama, by taxi. On 13 May they go to Porto by train. "
        "Still open: the day by the sea, and where to stay in Porto."
    ),
]
TURNS = [
    (
        "We land in Lisbon on 9 May. Nine days, my father and I. He is 71 and has a bad knee.",
        "Then let us plan around stairs: Alfama by tram or taxi, Baixa and Belém on foot. What do you two like?",
    ),
    (
        "Tiles and fado for me, trains and ships for him. And one day by the sea, please.",
        "The tile museum, an evening of fado, the navy museum in Belém, and Cascais by train for the sea.",
    ),
    (
        "Our budget is 2,400 euros for both of us, flights are paid.",
        "That is about 265 a day. A double room in Baixa takes 130 of it; museums are cheap, and so is lunch.",
    ),
    (
        "He must not eat shellfish, I forgot to say.",
        "Noted: no shellfish for Jonas. I will name places that cook meat and vegetables too.",
    ),
    (
        "I booked the hotel in Baixa, 640 euros, and it has a lift.",
        "Good choice. That leaves 1,760 euros for eight days of food, trains, museums and the rooms in Porto.",
    ),
    (
        "Our flight lands at 14:20. What do we do on the first day?",
        "Nothing far: check in, coffee at the Rossio, an early dinner. Day 2 then begins fresh with Belém.",
    ),
    (
        "Can we do the tile museum on day 3?",
        "Yes, by taxi, ten minutes from the hotel. It has a lift, and a café in the winter garden.",
    ),
    (
        "And fado without stairs?",
        "In Alfama, at street level, if the taxi stops at the door. I would book for day 4, eight in the evening.",
    ),
    (
        "How do we get to Porto?",
        "By train from Oriente, three hours, with seats by the window. Shall I look for the 13th of May?",
    ),
]


def trip(owner: User, convmemory: ScriptedMemories) -> SessionHandle:
    """A conversation that was folded three times and has just used a tool."""
    convmemory.reply(*SUMMARIES)
    session = memories["default"].session("portugal-in-may", owner=owner)
    session.append(ChatMessage.system("You plan trips. Be brief and concrete, and mind what the travellers told you."))
    for number, (asked, answered) in enumerate(TURNS, 1):
        session.append(ChatMessage.human(asked), ChatMessage.ai(answered))
        if number in (3, 6, 9):
            convmemory.run()
    arguments = '{"from": "Lisboa Oriente", "to": "Porto", "date": "2026-05-13"}'
    call = {"id": "call_7Xb2", "type": "function", "function": {"name": "search_trains", "arguments": arguments}}
    photo = {"type": "image_url", "image_url": {"url": "https://photos.example/station.jpg", "detail": "low"}}
    session.append(ChatMessage.human([{"type": "text", "text": "Yes, in the morning. Is it this station?"}, photo]))
    session.append(ChatMessage.ai(tool_calls=[call]))
    session.append(
        ChatMessage.tool('{"trains": [{"departs": "09:30", "arrives": "12:36", "euros": 31.0}]}', "call_7Xb2"),
        ChatMessage.ai("That is Oriente, yes. The train at 09:30 arrives at 12:36 and costs 31 euros each."),
    )
    models.Session.objects.filter(key="portugal-in-may").update(title="Portugal in May")
    _as_if_of_today(models.Session.objects.get(key="portugal-in-may"))
    return session


def _as_if_of_today(session: models.Session) -> None:
    """Spread the messages and the folds of the conversation over three hours."""
    began = timezone.now() - dt.timedelta(hours=3)
    for message in models.Message.objects.filter(session=session):
        models.Message.objects.filter(session=session, position=message.position).update(
            created_at=began + dt.timedelta(minutes=5 * message.position)
        )
    for summary in models.Summary.objects.filter(session=session):
        at = began + dt.timedelta(minutes=5 * summary.last_position + 12)
        models.Summary.objects.filter(pk=summary.pk).update(created_at=at, model="gpt-4o-mini")
        models.Attempt.objects.filter(session=session, version=summary.version).update(
            started_at=at,
            model="gpt-4o-mini",
            duration_seconds=1.9,
            due_seconds=2.1,
            prompt_tokens=412,
            completion_tokens=96,
            cost=Decimal("0.00011940"),
        )


TITLES = [
    ("lena", "Refund for order 4471"), ("omar", "Rust borrow checker"), ("wei", "把合同翻成英文"),
    ("sofia", "Weekly menu without gluten"), ("noah", "Thesis outline"), ("lena", "Printer offline"),
    ("amir", "رحلة إلى فاس"), ("wei", "周末去杭州"), ("sofia", "Cover letter"), ("omar", "Docker on a NAS"),
]  # fmt: skip


def others(seed: int = 7) -> None:
    """Conversations of other people, in every state, and the model calls of two weeks."""
    chance, now = random.Random(seed), timezone.now()
    for number, (name, title) in enumerate(TITLES):
        owner, _made = User.objects.get_or_create(username=name)
        session = memories["default"].session(f"chat-{number}", owner=owner)
        for _ in range(chance.randint(1, 4)):
            session.append(ChatMessage.human("words " * chance.randint(5, 25)), ChatMessage.ai("words " * 12))
        row = models.Session.objects.filter(key=f"chat-{number}")
        row.update(title=title, updated_at=now - dt.timedelta(minutes=3 + 19 * (len(TITLES) - number)))
        if number in (1, 5):
            row.update(
                due_since=now - dt.timedelta(minutes=7 + number),
                attempts=3,
                last_error="ModelUnavailable: the endpoint answered 529, overloaded",
                next_attempt_at=now + dt.timedelta(minutes=2),
            )
        elif number == 3:
            row.update(due_since=now - dt.timedelta(seconds=4), lease_expires_at=now + dt.timedelta(minutes=1))
    sessions = list(models.Session.objects.filter(key__startswith="chat-").order_by("pk"))
    models.Attempt.objects.bulk_create(
        _call(chance, now - dt.timedelta(hours=hour, minutes=chance.randint(0, 59)), hour, chance.choice(sessions))
        for hour in range(24 * 14)
        for _ in range(round(6 + 5 * chance.random() * (1 + (hour % 24 < 14))))
    )


def outage() -> None:
    """A pause since twenty minutes: two sessions were tried, and three wait."""
    now = timezone.now()
    error = "ModelUnavailable: HTTP 503 from https://api.example/v1: The server is overloaded. Please try again later."
    models.AliasState.objects.create(
        alias="default",
        failures=9,
        since=now - dt.timedelta(minutes=20),
        paused_until=now + dt.timedelta(seconds=45),
        reason="outage",
        error=error,
    )
    rows = models.Session.objects
    rows.filter(last_error__gt="").update(last_error=error)
    for number in (2, 6, 8):
        rows.filter(key=f"chat-{number}").update(due_since=now - dt.timedelta(minutes=3 * number))
    summary = models.Summary.objects.filter(session__key="portugal-in-may").latest("version")
    models.Summary.objects.filter(pk=summary.pk).update(fallback=True, stand_in=True, model="extractive")
    rows.filter(key="portugal-in-may").update(rebuild_after=now, due_since=now - dt.timedelta(minutes=2))


def _call(chance: random.Random, at: dt.datetime, hour: int, session: models.Session) -> models.Attempt:
    outage = 5 <= hour <= 6
    failed = chance.random() < (0.7 if outage else 0.02)
    large = chance.random() < 0.15
    prompt, completion = chance.randint(900, 3200), chance.randint(80, 260)
    return models.Attempt(
        session=session,
        alias="default",
        first_position=1,
        last_position=20,
        started_at=at,
        due_seconds=chance.expovariate(1 / (240 if outage else 2.5)),
        duration_seconds=chance.uniform(0.9, 4.0),
        outcome="unavailable" if failed else "published",
        error="ModelUnavailable: 529" if failed else "",
        model="gpt-4o" if large else "gpt-4o-mini",
        prompt_tokens=None if failed else prompt,
        completion_tokens=None if failed else completion,
        cached_tokens=None if failed else prompt // 3 if large else 0,
        cost=None if failed else Decimal(prompt * 15 + completion * 60) / 10**8 * (16 if large else 1),
    )
