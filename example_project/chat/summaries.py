"""Summaries without a model, which leave out what the offline responder says: that only quotes the conversation."""

from __future__ import annotations

import dataclasses

from chat import quotes
from django_convmemory.chat_models.base import ChatRequest, ChatResponse
from django_convmemory.chat_models.extractive import ExtractiveChatModel


class OfflineChatModel(ExtractiveChatModel):
    """Chooses sentences of the conversation, but none of the offline responder's."""

    def chat(self, request: ChatRequest) -> ChatResponse:
        """Return the summary of the turns that the responder did not write."""
        fold = request.fold
        if fold is not None:
            kept = [number for number, turn in enumerate(fold.turns) if not quotes.is_own(turn)]
            if kept or fold.previous:
                turns = [fold.turns[number] for number in kept]
                days = [fold.days[number] for number in kept] if fold.days else ()
                request = dataclasses.replace(request, fold=dataclasses.replace(fold, turns=turns, days=days))
        return super().chat(request)
