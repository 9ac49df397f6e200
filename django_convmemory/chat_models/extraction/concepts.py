"""The content of a sentence: its concepts, with their weights, and signals that it tells a lasting fact.

The concepts are words, numbers, names, and pairs of Chinese characters. A concept counts once in a summary, so a
summary gains nothing by repeating itself. This is the concept coverage of Gillick and Favre, "A Scalable Global Model
for Summarization" (2009), with single words instead of bigrams.

The signals are general forms of speech: a first person with a verb of state, a possession, a preference, a decision, an
identifier, an amount, a date. They know no subjects.
"""

from __future__ import annotations

import itertools
import math
import re
from collections import Counter
from collections.abc import Mapping, Sequence
from typing import NamedTuple

# Words without content: grammar, and words that are frequent in every chat. In lower case.
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

# The same as pairs of Chinese characters.
_CHINESE = """
不客 不用 客气 随时 问题 祝愉 愉快 生活 不错 不妨 试试 选择 没问 抱歉 意思 查询 查到 暂时
目前 提供 建议 符合 条件 满足 要求 需求 推荐 知道 告诉 感谢 非常 需要 了解 确定 怎样 如何
时候 现在 一家 一个 一下 一些 一点 另外 其他 其它 然后 以及 如果 因为 所以 但是 不过 而且
或者 比较 觉得 喜欢 希望 打算 准备 应该 当然 已经 正在 再见 收到 明白 没关 关系 欢迎 放心
没事 辛苦 高兴 开心 真是 太棒 确实 对不 不起 不知 顺便 最后 首先 联系 咨询 帮助
"""

# Chinese characters of grammar. A pair with one of them is without content.
_CHARACTERS = frozenset(
    "的了是我你您他她它们这那有在和就都也吗呢吧啊哦哟呀嗯请帮想要给个么什多少几谁哪好谢麻烦能可以还很为"
)

_WORDS, _PAIRS = frozenset(_ENGLISH.split()), frozenset(_CHINESE.split())

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


class Concepts(NamedTuple):
    """The concepts of one sentence. Names are in ``named`` as well, and those with digits in ``numbers``."""

    all: frozenset[str]
    named: frozenset[str]
    numbers: frozenset[str]


def of(sentence: str, speakers: frozenset[str] = frozenset()) -> Concepts:
    """Return the concepts of ``sentence``.

    ``speakers`` are lower-case words of the speakers' names. They are not concepts, because labels name the speakers.
    """
    plain: set[str] = set()
    named: set[str] = set()
    numbers: set[str] = set()
    for index, (number, wide, text) in enumerate(_TOKEN.findall(sentence)):
        if number:
            numbers.add(number)
        elif wide:
            pairs = (wide[i : i + 2] for i in range(len(wide) - 1)) if len(wide) > 1 else (wide,)
            plain.update(pair for pair in pairs if pair not in _PAIRS and _CHARACTERS.isdisjoint(pair))
        elif len(text) <= _LONGEST_WORD:
            word = text.lower().replace("’", "'").removesuffix("'s")
            if not word.isalpha() and any(character.isdigit() for character in word):
                numbers.add(word)
            elif len(word) > 1 and word not in _WORDS and word not in speakers:
                is_name = text[0].isupper() and (index > 0 or text[1:2].isupper())
                (named if is_name else plain).add(word[:_STEM_LENGTH])
    return Concepts(frozenset().union(plain, named, numbers), frozenset(named), frozenset(numbers))


def weights(sentences: Sequence[Concepts]) -> Mapping[str, float]:
    """Return the weight of each concept of ``sentences``.

    The weight grows with the logarithm of the number of sentences that contain the concept: a conversation returns to
    its subject. Names and numbers weigh more, because a reader cannot reconstruct them.
    """
    counts = Counter(itertools.chain.from_iterable(concepts.all for concepts in sentences))
    named = Counter(itertools.chain.from_iterable(concepts.named for concepts in sentences))
    numbers = set(itertools.chain.from_iterable(concepts.numbers for concepts in sentences))
    return {
        concept: (1 + math.log2(count))
        * (_NUMBER_WEIGHT if concept in numbers else _NAME_WEIGHT if named[concept] * 2 > count else 1.0)
        for concept, count in counts.items()
    }


# Signals of a lasting fact in a sentence, and of talk that no memory needs.


_NUMBER = r"\d+(?:[.,:/-]\d+)*"
_MONTH = (
    r"(?:jan(?:uary)?|feb(?:ruary)?|march|april|june|july|aug(?:ust)?|sept?(?:ember)?|oct(?:ober)?|nov(?:ember)?"
    r"|dec(?:ember)?)"
)
_DAY = r"(?:mon|tues|wednes|thurs|fri|satur|sun)days?"

_DIGIT = re.compile(r"\d")
_ADDRESS = re.compile(r"[\w.+-]@[\w-]{1,64}\.\w|https?://|\bwww\.")
# A code of letters and digits, or a long number that is no year.
_CODE = re.compile(
    r"""(?<![A-Za-z0-9])(?:
      (?<!-)(?=[A-Z0-9-]{0,40}\d)(?=[A-Z0-9-]{0,40}[A-Z])[A-Z0-9]{1,40}(?:-[A-Z0-9]{1,40}){0,9}
      | (?=[a-z0-9]{0,40}\d)[a-z]{3,40}\d{2,40})(?![A-Za-z0-9])
    | (?=[\d+(])(?<![\d.,])(?:
      (?:\+?\d{1,4}[-\ ()/.]{1,2})?\(?\d{2,4}\)?[-\ ]\d{3,4}[-\ ]?\d{3,4}(?![\d.,]?\d)
      | (?<![$€£¥])(?!(?:19|20)\d\d(?!\d))(?:\d{7,20}(?!\d)|\d{4,6}(?![\d.,]?\d))(?!\s?(?:元|块|euros?\b
        |dollars?\b|pounds?\b)))""",
    re.VERBOSE,
)

# Words, and what does not begin with a letter of English, in lower case. Each row counts once in a sentence.
_SIGNAL_WEIGHT = 1.5
_FORMS = (
    # Amounts, which have no words of their own.
    (
        "(?!)",
        r"""[$€£¥]\s?\d | \d(?!\d)(?:\s?(?:[$€£¥%]|(?:euros?|dollars?|pounds?|bucks|percent|mg|g|kg|km|miles|minutes
          |hours)\b) | \s*(?:元|块|公里|分钟|小时|平米))""",
    ),
    # Dates and times.
    (
        rf"{_MONTH} | {_DAY}",
        r"""\b(?:\d{1,2}:\d\d | \d{1,2}\s?(?:am|pm) | \d{4}-\d\d-\d\d)\b
        | \d(?!\d)\s*[月日号点] | (?:周|星期|礼拜)[一二三四五六日天]""",
    ),
    # What belongs to the speaker, and what it is.
    (
        r"""(?:my|our|your)\ (?:[\w'’-]+\ ){1,4}(?:is|are|was|were|'s|’s|has|have|will|hates?|loves?|likes?|gets?|lives?
          |works?) | named | called | names?""",
        "(?:我|我们|您|你)(?:的|家)?[^，。！？]{0,8}(?:叫|是|为) | 名字",
    ),
    # The state of the speaker.
    (
        r"""(?:i|we)(?:\ am|['’]m|\ are|['’]re|['’]ve\ been|\ have\ been)\ (?:an?|the|from|in|at|on|allergic|married
          |single)
        | (?:i|we)\ (?:\w+ly\ |also\ |still\ |now\ )?(?:work|live|study|have|own|drive|ride|take|pay|grew|moved|come
          |teach|play|speak|wear|need)""",
        "我(?:们)?[^，。！？]{0,6}(?:在|住|有|对|从|做|当)",
    ),
    # Preferences and habits.
    (
        r"""favou?rite|prefer\w*|allerg\w+|vegan|vegetarian|hates?|dislikes?|fan\ of|(?:can['’]?t|cannot)\ stand|always
        |never | (?:i|we)\ (?:\w+ly\ )?(?:like|love|enjoy) | no\ \w+\ for\ (?:me|us)""",
        "喜欢|讨厌|爱吃|最爱|不吃|不喝|过敏|从来|从不|习惯|宁愿|更愿意",
    ),
    # Decisions, promises and dates that are fixed.
    (
        r"""decided|agreed|promised?|booked|booking|reserved|confirmed|scheduled|settled|appointment|deadline|due|expires?
        |remind|remember|meet|plan(?:s|ning)?\ to|going\ to|moving|want\ to|must|has\ to|have\ to
        | (?:i|we)(?:['’]ll|\ will)""",
        "决定|约定|答应|说好|预约|预订|预定|订了|截止|到期|提醒|记得|打算|计划|见面|搬到|结婚|生日",
    ),
)


def _form(words: str, others: str) -> re.Pattern[str]:
    return re.compile(rf"\b(?=[a-z])(?:{words})\b | (?![a-z\s])(?:{others})", re.VERBOSE)


_SIGNALS = tuple(_form(words, others) for words, others in _FORMS)
# Most sentences of a pasted table have none of them. One search says so.
_ANY_SIGNAL = _form("|".join(words for words, _ in _FORMS), "|".join(others for _, others in _FORMS))

_GREETING = re.compile(
    r"""\W*(?:hi|hello|hey|good\ (?:morning|afternoon|evening|night)|(?:it['’]?s\ )?(?:so\ )?(?:nice|good|great
      |lovely)\ to
    \ (?:meet|see|hear\ from)|how\ are\ you|how['’]s\ it\ going|how\ have\ you\ been|what['’]s\ up
      |long\ time\ no\ see|bye|goodbye|see\ you
    |talk\ (?:to\ you\ )?(?:soon|later)|take\ care|have\ a\ (?:\w+\ ){1,2}(?:day|one|evening|night|weekend|time)
      |welcome\ back|thanks?|cheers
    |你好|您好|早上好|上午好|中午好|下午好|晚上好|晚安|再见|拜拜|祝[您你]|谢谢|感谢|不客气|很高兴认识|欢迎)
    (?:\W+\w+){0,2}\W*""",
    re.IGNORECASE | re.VERBOSE,
)
# In lower case.
_ABOUT_THE_BOT = re.compile(
    r"""\b(?:(?:i['’]?m|i\ am|as)\ (?:\w+\ ){0,3}(?:ai|bot|chatbot|assistant|language\ model)\b
    | (?:can|may|could)\ i\ (?:help|assist)\b | (?:here|happy|glad|ready)\ to\ (?:help|assist|answer)\b)
    | (?=[一-龥])(?:作为|我是)[^，。]{0,8}(?:ai|人工智能|机器人|语言模型|助手)
    | 有什么[^，。！？]{0,6}(?:帮|为)""",
    re.VERBOSE,
)


def signals_of_a_fact(sentence: str) -> float:
    """Return how much ``sentence`` has the form of a lasting fact, besides identifiers: 0 has no signal."""
    lower = sentence.lower()
    return _SIGNAL_WEIGHT * sum([bool(form.search(lower)) for form in _SIGNALS]) if _ANY_SIGNAL.search(lower) else 0.0


def has_identifier(sentence: str) -> bool:
    """Whether ``sentence`` has an address of mail or a page, a phone number, or the number or code of something."""
    return bool((_DIGIT.search(sentence) and _CODE.search(sentence)) or _ADDRESS.search(sentence))


def is_idle(sentence: str) -> bool:
    """Whether ``sentence`` is a greeting or thanks as a whole, or is what a bot says about itself and its service."""
    return bool(_GREETING.fullmatch(sentence) or _ABOUT_THE_BOT.search(sentence.lower()))
