"""The content of a sentence as weighted concepts: words, numbers, names, and pairs of Chinese characters.

A concept counts once in a summary, so a summary gains nothing by repeating itself. This is the concept coverage of
Gillick and Favre, "A Scalable Global Model for Summarization" (2009), with single words instead of bigrams.
"""

from __future__ import annotations

import dataclasses
import math
import re
from collections import Counter
from collections.abc import Iterable, Mapping

# Words without content: grammar, and words that are frequent in every chat.


_ENGLISH = """
a about actually after again agree all almost already also always am an and any anything are aren't around as at away
awesome amazing back be became because been before being best better bit both bring but bye by came can can't cannot
cheers come cool could couldn't did didn't do does doesn't doing don't done down each else enough even ever every
everyone everything excited feel few fine for forward from fun get gets getting glad go goes going gonna good got
gotta great guess guys had happy has have haven't having he he's hear heard hello help her here here's hers hey hi him
his hope how how's i i'd i'll i'm i've if in incredible into is isn't it it'd it'll its just keep kind kinda know last
let let's like little ll look looking lot lots love luck made make makes making many may maybe me mean might mine mm
more most much must my myself need never new nice no not nothing now of off oh ok okay on once one only or other our
ours out over own people please pretty put quite re really right safe said same say see seem seems she she's should so
some something soon sorry sound sounds stay still stuff such super sure take taking talk tell than thank thanks that
that's the their them then there there's these they they're thing things think this those though thought through time
to today too totally try trying two us use ve very wait want wanna wanted was wasn't way we we'd we'll we're we've
well went were what what's when where which while who why will wish with won't wonderful work would wouldn't wow yeah
year yep yes yet you you'd you'll you're you've your yours yourself yum yup user assistant tool
"""

_CHINESE = """
不客 不用 客气 随时 问题 祝愉 愉快 生活 不错 不妨 试试 选择 没问 抱歉 意思 查询 查到 暂时
目前 提供 建议 符合 条件 满足 要求 需求 推荐 知道 告诉 感谢 非常 需要 了解 确定 怎样 如何
时候 现在 一家 一个 一下 一些 一点 另外 其他 其它 然后 以及 如果 因为 所以 但是 不过 而且
或者 比较 觉得 喜欢 希望 打算 准备 应该 当然 已经 正在 再见 收到 明白 没关 关系 欢迎 放心
没事 辛苦 高兴 开心 真是 太棒 确实 对不 不起 不知 顺便 最后 首先 联系 咨询 帮助
"""

_CHINESE_PARTICLES = (
    "的了是我你您他她它们这那有在和就都也吗呢吧啊哦哟呀嗯请帮想要给个么什多少几谁哪好谢麻烦能可以还很为"
)

WORDS = frozenset(_ENGLISH.split())
"""English words, in lower case."""

PAIRS = frozenset(_CHINESE.split())
"""Pairs of Chinese characters."""

CHARACTERS = frozenset(_CHINESE_PARTICLES)
"""Chinese characters of grammar. A pair with one of them is without content."""


_TOKEN = re.compile(
    r"(?P<number>[$€£¥]?\d+(?:[-.:/,%]\d+)*%?)"
    r"|(?P<wide>[\u3040-\u30ff\u3400-\u4dbf\u4e00-\u9fff\uf900-\ufaff\U00020000-\U0003ffff]+)"
    r"|(?P<word>[^\W\d_](?:[\w]|['’-](?=\w))*)"
)
_LONGEST_WORD = 40
# Words with the same first letters are one concept: "volunteer", "volunteered" and "volunteering".
_STEM_LENGTH = 6
# The weights of a number and of a name; another word weighs 1.
_NUMBER_WEIGHT = 2.5
_NAME_WEIGHT = 1.5


@dataclasses.dataclass(frozen=True, slots=True)
class Concepts:
    """The concepts of one sentence: names in ``named``, those with digits in ``numbers``, the rest in ``plain``."""

    plain: frozenset[str]
    named: frozenset[str]
    numbers: frozenset[str]

    @property
    def all(self) -> frozenset[str]:
        return self.plain | self.named | self.numbers


def of(sentence: str, speakers: frozenset[str] = frozenset()) -> Concepts:
    """Return the concepts of ``sentence``.

    ``speakers`` are lower-case words of the speakers' names. They are not concepts, because labels name the speakers.
    """
    plain: set[str] = set()
    named: set[str] = set()
    numbers: set[str] = set()
    for index, token in enumerate(_TOKEN.finditer(sentence)):
        text = token.group()
        if token.lastgroup == "number":
            numbers.add(text)
        elif token.lastgroup == "wide":
            pairs = (text[i : i + 2] for i in range(len(text) - 1)) if len(text) > 1 else (text,)
            plain.update(pair for pair in pairs if not _is_grammar(pair))
        elif len(text) <= _LONGEST_WORD:
            word = text.lower().replace("’", "'")
            word = word.removesuffix("'s")
            if any(character.isdigit() for character in word):
                numbers.add(word)
            elif len(word) > 1 and word not in WORDS and word not in speakers:
                is_name = text[0].isupper() and (index > 0 or text[1:2].isupper())
                (named if is_name else plain).add(word[:_STEM_LENGTH])
    return Concepts(frozenset(plain - named), frozenset(named), frozenset(numbers))


def _is_grammar(pair: str) -> bool:
    """Whether a pair of Chinese characters carries no content."""
    return pair in PAIRS or not CHARACTERS.isdisjoint(pair)


def weights(sentences: Iterable[Concepts]) -> Mapping[str, float]:
    """Return the weight of each concept of ``sentences``.

    The weight grows with the logarithm of the number of sentences that contain the concept: a conversation returns to
    its subject. Names and numbers weigh more, because a reader cannot reconstruct them.
    """
    counts: Counter[str] = Counter()
    named: Counter[str] = Counter()
    numbers: set[str] = set()
    for concepts in sentences:
        counts.update(concepts.all)
        named.update(concepts.named)
        numbers |= concepts.numbers
    return {
        concept: (1 + math.log2(count))
        * (_NUMBER_WEIGHT if concept in numbers else _NAME_WEIGHT if named[concept] * 2 > count else 1.0)
        for concept, count in counts.items()
    }
