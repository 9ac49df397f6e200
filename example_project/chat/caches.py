"""How much of the next prompt a provider's cache can serve: what the last prompt began with as well."""

from __future__ import annotations

from django_convmemory.context.assembly import Context
from django_convmemory.models import Session, Summary


def served(session: Session, context: Context) -> int:
    """Return the tokens of ``context`` that the prompt of the newest reply began with.

    That prompt ended with the question. If a summary was made since, it began with another summary, or with none.
    """
    shown = [part.position for part in context.parts if part.message.role == "assistant" and part.position]
    if not shown:
        return 0
    replied = session.convmemory_messages.filter(position=shown[-1]).values_list("created_at", flat=True).first()
    summaries = Summary.objects.filter(session=session, version=session.current_version)
    folded = summaries.values_list("created_at", flat=True).first()
    tokens = 0
    for part in context.parts[: context.stable_prefix]:
        if part.position == shown[-1] or (part.name == "summary" and folded and replied and folded > replied):
            break
        tokens += part.tokens
    return tokens
