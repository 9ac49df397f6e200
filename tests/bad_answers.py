"""Answers that are no summaries, in kinds, languages and forms, and short summaries that are faithful.

``python -m tests.bad_answers`` prints how many bad answers of each kind would replace a summary, or be the first one.
"""

from __future__ import annotations

import datetime as dt
import functools
import itertools
import json
import pathlib
import random
import sys
from collections.abc import Iterator, Sequence
from typing import Any, NamedTuple

from django_convmemory.chat_models.base import ChatRequest, ChatResponse
from django_convmemory.exceptions import ChatModelError
from django_convmemory.fold import replacing, validate
from django_convmemory.fold.request import Requests
from django_convmemory.messages import ChatMessage
from django_convmemory.prompts import DefaultPrompts
from django_convmemory.rules.exchanges import MessageRef
from django_convmemory.rules.options import Options
from django_convmemory.tokens import Utf8TokenCounter

LANGUAGES = ("en", "de", "es", "fr", "zh")
# What speakers say besides, in any talk.
SMALL_TALK = {
    "en": ["Thanks a lot.", "You're welcome.", "One moment, please.", "Sure, take your time.", "Anything else today?"],
    "de": ["Vielen Dank.", "Gern geschehen.", "Einen Moment, bitte.", "Kein Problem.", "Sonst noch etwas heute?"],
    "es": ["Muchas gracias.", "De nada.", "Un momento, por favor.", "Claro, sin prisa.", "¿Algo más hoy?"],
    "fr": ["Merci beaucoup.", "Je vous en prie.", "Un instant, s'il vous plaît.", "Bien sûr.", "Autre chose ?"],
    "zh": ["非常感谢。", "不客气。", "请稍等。", "好的，不着急。", "今天还有别的吗？"],
}

# Kinds of bad answers: for each language, some texts. "*" is for all of them.
BAD: dict[str, dict[str, list[str]]] = {
    "acknowledgement": {
        "en": ["Done.", "Yes", "Okay!", "Understood.", "Noted, thank you.", "I understand."],
        "de": ["Erledigt.", "Ja", "Verstanden.", "Alles klar.", "Gerne!", "In Ordnung.", "Danke, notiert."],
        "es": ["Hecho.", "Sí", "Entendido.", "De acuerdo.", "Claro.", "Muy bien, gracias."],
        "fr": ["Fait.", "Oui", "Compris.", "D'accord.", "Bien sûr !", "C'est noté, merci."],
        "zh": ["好的。", "完成", "已完成。", "明白了。", "收到！", "没问题。", "好的，我知道了。"],
    },
    "announcement": {
        "en": ["Sure! Here is the new summary:", "Certainly, I'll write the summary now."],
        "de": ["Gerne! Hier ist die neue Zusammenfassung:", "Ich schreibe jetzt die Zusammenfassung."],
        "es": ["¡Claro! Aquí está el nuevo resumen:", "Ahora escribo el resumen."],
        "fr": ["Bien sûr ! Voici le nouveau résumé :", "Je vais écrire le résumé."],
        "zh": ["好的，以下是新的摘要：", "我现在开始写总结。"],
    },
    "question back": {
        "en": ["What would you like me to summarize?", "Could you share the conversation again?"],
        "de": ["Können Sie genauer sagen, was ich soll?", "Welches Gespräch soll ich zusammenfassen?"],
        "es": ["¿Podría aclarar qué quiere que resuma?", "¿Qué conversación debo resumir?"],
        "fr": ["Pourriez-vous préciser ce que vous souhaitez ?", "Quelle conversation dois-je résumer ?"],
        "zh": ["请问您想让我总结什么内容？", "您能说得更清楚一些吗？", "请把对话内容再发一次。"],
    },
    "refusal": {
        "en": ["I'm unable to do that.", "I can't help with this request.", "This request was declined."],
        "de": ["Dabei kann ich nicht helfen.", "Diese Anfrage wurde abgelehnt."],
        "es": ["No puedo ayudar con eso.", "Esta solicitud fue rechazada."],
        "fr": ["Je ne peux pas vous aider.", "Cette requête a été refusée."],
        "zh": ["我无法回答这个问题。", "该请求已被拒绝。", "换个话题吧。"],
    },
    "busy": {
        "en": ["Overloaded", "The server is busy, please try again later.", "The model is currently overloaded."],
        "de": ["Der Server ist überlastet. Bitte versuchen Sie es später erneut.", "Dienst nicht verfügbar"],
        "es": ["El servidor está ocupado. Inténtelo más tarde.", "Servicio no disponible"],
        "fr": ["Le serveur est occupé, veuillez réessayer plus tard.", "Service indisponible"],
        "zh": ["服务器繁忙，请稍后再试。", "系统繁忙", "模型负载过高，请稍后重试。"],
    },
    "quota": {
        "en": ["You have reached your limit for today.", "Quota exceeded.", "Your credits are used up."],
        "de": ["Ihr Kontingent ist aufgebraucht.", "Das Limit für heute ist erreicht."],
        "es": ["Ha alcanzado su límite de hoy.", "Cuota superada."],
        "fr": ["Vous avez atteint votre limite.", "Quota dépassé."],
        "zh": ["您的额度已用完。", "今日调用次数已达上限。", "配额不足"],
    },
    "page of a proxy": {
        "*": [
            *("Just a moment...", "Attention Required! | Cloudflare", "Welcome to nginx!", "502 Proxy Error"),
            *("Squid: the requested URL could not be retrieved", "Checking your browser before accessing the site."),
        ],
    },
    "control words": {
        "*": ["<|im_start|>assistant", "<|im_end|>", "assistant\n\n", "### Response:", "<s>[INST]"],
    },
    "nothing in a form": {
        "*": [
            *("(no changes)", "N/A", '""', "“”", "-", "[]", "{}", '{"summary": ""}', '{"summary": null, "open": []}'),
            *('{"status": "ok"}', "[SUMMARY]", "<summary></summary>", "undefined", "TODO", "...", "***", "null\nnull"),
            *("." * 30_000 + "ab", "- " * 400 + "ok", "the " * 300, "summary " * 200, "好" * 50, "1. \n2. \n3. "),
        ],
    },
}
FORMS = (
    *(" {}\n", "**{}**", '"{}"', "> {}", "```\n{}\n```", "```json\n{}\n```", "Summary: {}", "# {}", "{} 😊"),
    *("{}", "<think>Well.</think>{}"),
)
SECOND = {"en": "Thank you.", "de": "Vielen Dank.", "es": "Gracias.", "fr": "Merci.", "zh": "谢谢。", "*": "OK."}


class Case(NamedTuple):
    """An answer of one kind to ``request``."""

    kind: str
    answer: str
    request: ChatRequest


class Faithful(NamedTuple):
    """A talk, and sentences that summarize it: the first one alone, the first two, or all three."""

    language: str
    turns: tuple[str, ...]
    sentences: tuple[str, ...]

    @property
    def summaries(self) -> list[str]:
        space = "" if self.language == "zh" else " "
        return [space.join(self.sentences[:count]) for count in (1, 2, 3)]


def faithful() -> Iterator[Faithful]:
    """Return the talks of ``tests/summaries``: a line with ``>`` is a turn, and the others are a summary of them."""
    for language in LANGUAGES:
        path = pathlib.Path(__file__).with_name("summaries") / f"{language}.txt"
        for block in path.read_text(encoding="utf-8").split("\n\n"):
            lines = block.strip().split("\n")
            turns = [line[2:] for line in lines if line.startswith("> ")]
            yield Faithful(language, tuple(turns), tuple(lines[len(turns) :]))


def long(talk: Faithful, size: int) -> list[str]:
    """Return the turns with small talk after them, until they have ``size`` bytes."""
    turns = list(talk.turns)
    for words in itertools.cycle(SMALL_TALK[talk.language]):
        if len("".join(turns).encode()) >= size:
            return turns
        turns.append(words)
    raise AssertionError


def request(turns: Sequence[str], previous: str = "") -> ChatRequest:
    """Return a request for a summary."""
    requests = Requests(DefaultPrompts(), Options(), Utf8TokenCounter(), dt.UTC)
    rows = [
        MessageRef(position, (ChatMessage.human if position % 2 else ChatMessage.ai)(text), 1, None)
        for position, text in enumerate(turns, 1)
    ]
    return requests.fold(previous, rows, part=None, max_tokens=500)


def refused(answer: str, to: ChatRequest) -> str:
    """Return why ``answer`` is no summary, or ""."""
    assert to.fold is not None
    try:
        text = validate.checked(ChatResponse(ChatMessage.ai(answer)))
        replacing.check_is_no_echo(text, to, "")
        replacing.check(text, to.fold.previous, to.fold.turns)
    except ChatModelError as error:
        return f"{type(error).__name__}: {error}"
    return ""


def cases(seed: int = 1) -> Iterator[tuple[Case, Case]]:
    """Return bad answers, each over a good summary and as the first one, to talks in each language."""
    rng = random.Random(seed)
    talks = list(faithful())
    for kind, language, text in _texts():
        for form in FORMS:
            same = [talk for talk in talks if language in ("*", talk.language)]
            talk = rng.choice(same if rng.random() < 0.7 else talks)
            more = f" {SECOND[language]}" if rng.random() < 0.3 else ""
            yield _pair(kind, form.format(text + more), talk)
    for talk in talks:
        yield from _echoes(talk)


def _texts() -> Iterator[tuple[str, str, str]]:
    for kind, languages in BAD.items():
        for language, texts in languages.items():
            for text in texts:
                yield kind, language, text
                if text.isascii() and kind != "nothing in a form":
                    yield kind, language, text.upper()


def _echoes(talk: Faithful) -> Iterator[tuple[Case, Case]]:
    over, first = _requests(talk)
    system, asked = over.messages[0].text, over.messages[1].text
    first_asked = first.messages[1].text
    sentences = [sentence for sentence in system.replace("\n", " ").split(". ") if len(sentence) > 20]
    for answers in (
        ("echo of the request", asked, first_asked),
        ("echo of the request", asked[len(asked) // 2 :], first_asked[len(first_asked) // 2 :]),
        ("echo of the request", asked.splitlines()[0], first_asked.splitlines()[1]),
        ("echo of the request", asked.splitlines()[-1], first_asked.splitlines()[-1]),
        ("echo of the prompt", system, system),
        ("echo of the prompt", system.splitlines()[0], system.splitlines()[0]),
        ("echo of the prompt", *[sentences[len(talk.sentences[0]) % len(sentences)]] * 2),
    ):
        yield Case(answers[0], answers[1], over), Case(answers[0], answers[2], first)


def _pair(kind: str, answer: str, talk: Faithful) -> tuple[Case, Case]:
    over, first = _requests(talk)
    return Case(kind, answer, over), Case(kind, answer, first)


@functools.cache
def _requests(talk: Faithful) -> tuple[ChatRequest, ChatRequest]:
    # A summary of some 225 characters, as this app's tests have seen one replaced.
    previous = (talk.summaries[-1] + " ") * 9
    return request(long(talk, 4000), previous[: 80 if talk.language == "zh" else 225].strip()), request(
        long(talk, 4000)
    )


def table(judge: Any = refused) -> tuple[list[str], list[Case]]:
    """Return a line for each kind, and the answers that ``judge`` lets through."""
    counts: dict[str, list[int]] = {}
    through = []
    for over, first in cases():
        count = counts.setdefault(over.kind, [0, 0, 0])
        count[0] += 1
        for place, case in ((1, over), (2, first)):
            if not judge(case.answer, case.request):
                count[place] += 1
                through.append(case)
    lines = [f"{'kind':22} {'tried':>6} {'over a summary':>15} {'as the first':>13}"]
    counts["all"] = [sum(column) for column in zip(*counts.values(), strict=True)]
    lines += [f"{kind:22} {tried:6} {over:15} {first:13}" for kind, (tried, over, first) in counts.items()]
    return lines, through


if __name__ == "__main__":
    lines, through = table()
    print("\n".join(lines))
    if "-v" in sys.argv:
        print("\n".join(f"{case.kind}: {json.dumps(case.answer[:100], ensure_ascii=False)}" for case in through))
