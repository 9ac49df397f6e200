"""The page on which staff tries another model, other instructions, or a question for recall. It stores nothing."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from typing import Any

from django import forms
from django.utils.functional import cached_property
from django.utils.safestring import SafeString
from django.utils.translation import gettext as _, gettext_lazy

from django_convmemory import models
from django_convmemory.admin import differences
from django_convmemory.conversation import ConversationMemory
from django_convmemory.core.context import Context
from django_convmemory.core.hits import Hit
from django_convmemory.maintenance import trials
from django_convmemory.maintenance.trials import Covers, Trial
from django_convmemory.memory import memories

MAX_INSTRUCTIONS, MAX_QUESTION = 4000, 2000
# Characters of an answer that are shown.
MAX_TEXT = 20_000
PERMISSION = "convmemory.try_prompts"


class TrialForm(forms.Form):
    """A model, what it should cover, and the instructions of its prompt."""

    covers = forms.ChoiceField(label=gettext_lazy("Messages"))
    model = forms.ChoiceField(label=gettext_lazy("Model"))
    instructions = forms.CharField(
        label=gettext_lazy("Instructions"),
        required=False,
        max_length=MAX_INSTRUCTIONS,
        widget=forms.Textarea(attrs={"rows": 4, "dir": "auto"}),
        help_text=gettext_lazy("The option “instructions”: what a summary keeps, and what it leaves out."),
    )

    def __init__(self, data: Any, session: models.Session, memory: ConversationMemory) -> None:
        initial = {"model": memory.alias, "instructions": memory.options.instructions}
        super().__init__(data, initial=initial, auto_id="convmemory-trial-%s")
        next_fold = (Covers.NEXT.value, _("what the next fold would cover"))
        version = (Covers.VERSION.value, _("those of version %(n)s, again") % {"n": session.current_version})
        choices: Any = self.fields
        choices["covers"].choices = [version, next_fold] if session.current_version else [next_fold]
        choices["model"].choices = [(alias, _name(memories[alias])) for alias in _aliases()]


class RecallForm(forms.Form):
    """A question, of which recall finds what was said earlier."""

    question = forms.CharField(
        label=gettext_lazy("Question"),
        max_length=MAX_QUESTION,
        widget=forms.Textarea(attrs={"rows": 2, "dir": "auto"}),
        help_text=gettext_lazy("As a user would ask it."),
    )

    def __init__(self, data: Any) -> None:
        super().__init__(data, auto_id="convmemory-recall-%s")


@dataclasses.dataclass
class TrialPage:
    """The page of ``session``, whose ``memory`` writes the prompts. ``posted`` are the fields of a form, or None."""

    session: models.Session
    memory: ConversationMemory
    posted: Mapping[str, Any] | None = None

    @cached_property
    def form(self) -> TrialForm | None:
        """The form of a trial, or None if no memory of the settings has a model, or this one makes no summaries."""
        if not (self.memory.summarizes and _aliases()):
            return None
        return TrialForm(self.posted if self._is("trial") else None, self.session, self.memory)

    @cached_property
    def recall_form(self) -> RecallForm:
        return RecallForm(self.posted if self._is("recall") else None)

    def _is(self, name: str) -> bool:
        return self.posted is not None and self.posted.get("form") == name

    @property
    def is_trial(self) -> bool:
        """Whether a valid form asks for a trial."""
        return self._is("trial") and self.form is not None and self.form.is_valid()

    @cached_property
    def current(self) -> str:
        """What the model wrote of the current summary, or ""."""
        row = models.Summary.objects.using(self.session._state.db).filter(session=self.session)
        summary = row.filter(version=self.session.current_version).first()
        return summary.value.model_text if summary is not None else ""

    @cached_property
    def current_tokens(self) -> int:
        return self.memory.requests.count(self.current) if self.current else 0

    @cached_property
    def trial(self) -> Trial | None:
        """The trial, which calls the model, or None if there is nothing to fold, or none was asked for."""
        if not self.is_trial or self.form is None:
            return None
        chosen = self.form.cleaned_data
        material = trials.material(self.memory, self.session, Covers(chosen["covers"]))
        other = memories[chosen["model"]]
        if material is None or other.model is None:
            return None
        return trials.run(self.memory, material, other.model, price=other.price, instructions=chosen["instructions"])

    @property
    def text(self) -> SafeString:
        """The text of the trial, with what differs from the current summary."""
        trial = self.trial
        before = "" if trial is None or trial.error else self.current
        return differences.marked(differences.words(before, trial.text[:MAX_TEXT] if trial else ""))

    @cached_property
    def recalled(self) -> Context | None:
        """The context with what recall quotes for the question, or None if no question was asked."""
        if not (self._is("recall") and self.recall_form.is_valid()):
            return None
        return self.memory.load(self.session, recall=self.recall_form.cleaned_data["question"])

    @property
    def hits(self) -> list[Hit]:
        return list(self.recalled.recalled) if self.recalled else []

    @property
    def quotes(self) -> tuple[str, int] | None:
        """The message that quotes what was found, with its tokens, or None if nothing was found."""
        parts = self.recalled.parts if self.recalled else ()
        return next(((part.message.text, part.tokens) for part in parts if part.name == "recalled"), None)


def _aliases() -> list[str]:
    """Return the aliases of the settings that have a model."""
    return [alias for alias in memories if memories[alias].model is not None]


def _name(memory: ConversationMemory) -> str:
    return f"{memory.alias}: {memory.model.name}" if memory.model and memory.model.name else memory.alias
