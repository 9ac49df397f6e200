"""The signals of a lasting fact in a sentence, and of talk that no memory needs.

The signals are general forms of speech: a first person with a verb of state, a possession, a preference, a decision, an
identifier, an amount, a date. They know no subjects.
"""

from __future__ import annotations

import re

_NUMBER = r"\d+(?:[.,:/-]\d+)*"
_MONTH = (
    r"(?:jan(?:uary)?|feb(?:ruary)?|march|april|june|july|aug(?:ust)?|sept?(?:ember)?|oct(?:ober)?|nov(?:ember)?"
    r"|dec(?:ember)?)"
)
_DAY = r"(?:mon|tues|wednes|thurs|fri|satur|sun)days?"

# An address of mail or of a page, a code of letters and digits, or a long number that is no year.
_IDENTIFIER = re.compile(
    r"""(?<![\w.+-])[\w.+-]{1,64}@[\w-]{1,64}\.\w | https?:// | \bwww\.
    | (?<![A-Za-z0-9-])(?=[A-Z0-9-]{0,40}\d)(?=[A-Z0-9-]{0,40}[A-Z])[A-Z0-9]{1,40}
      (?:-[A-Z0-9]{1,40}){0,9}(?![A-Za-z0-9])
    | (?<![A-Za-z0-9])(?=[a-z0-9]{0,40}\d)[a-z]{3,40}\d{2,40}(?![A-Za-z0-9])
    | (?<![\d.,])(?:\+?\d{1,4}[-\ ()/.]{1,2})?\(?\d{2,4}\)?[-\ ]\d{3,4}[-\ ]?\d{3,4}(?![\d.,]?\d)
    | (?<![\d.,$€£¥])(?!(?:19|20)\d\d(?!\d))(?:\d{7,20}(?!\d)|\d{4,6}(?![\d.,]?\d))(?!\s?(?:元|块|euros?\b
      |dollars?\b|pounds?\b))""",
    re.VERBOSE,
)
_IDENTIFIER_WEIGHT = 2.0

# By weight. Each list counts once in a sentence.
_SIGNALS: tuple[tuple[float, re.Pattern[str]], ...] = tuple(
    (weight, re.compile(pattern, re.IGNORECASE | re.VERBOSE))
    for weight, pattern in (
        # Amounts.
        (
            1.5,
            r"""[$€£¥]\s?\d | \d\s?(?:[$€£¥%]|(?:euros?|dollars?|pounds?|bucks|percent|mg|g|kg|km|miles|minutes
              |hours)\b)
            | \d\s*(?:元|块|公里|分钟|小时|平米)""",
        ),
        # Dates and times.
        (
            1.5,
            rf"""\b{_MONTH}\b | \b{_DAY}\b | \b\d{{1,2}}:\d\d\b | \b\d{{1,2}}\s?(?:am|pm)\b | \b\d{{4}}-\d\d-\d\d\b
            | \d\s*[月日号点] | (?:周|星期|礼拜)[一二三四五六日天]""",
        ),
        # What belongs to the speaker, and what it is.
        (
            1.5,
            r"""\b(?:my|our|your)\ (?:[\w'’-]+\ ){1,4}(?:is|are|was|were|'s|’s|has|have|will|hates?|loves?|likes?
              |gets?|lives?|works?)\b
            | \b(?:named|called)\b | \bnames?\b
            | (?:我|我们|您|你)(?:的|家)?[^，。！？]{0,8}(?:叫|是|为) | 名字""",
        ),
        # The state of the speaker.
        (
            1.5,
            r"""\b(?:I|we)(?:\ am|['’]m|\ are|['’]re|['’]ve\ been|\ have\ been)\ (?:an?|the|from|in|at|on|allergic
              |married|single)\b
            | \b(?:I|we)\ (?:\w+ly\ |also\ |still\ |now\ )?(?:work|live|study|have|own|drive|ride|take|pay|grew
              |moved|come|teach|play|speak|wear|need)\b
            | 我(?:们)?[^，。！？]{0,6}(?:在|住|有|对|从|做|当)""",
        ),
        # Preferences and habits.
        (
            1.5,
            r"""\b(?:favou?rite|prefer\w*|allerg\w+|vegan|vegetarian|hates?|dislikes?|fan\ of|(?:can['’]?t
              |cannot)\ stand|always|never)\b
            | \b(?:I|we)\ (?:\w+ly\ )?(?:like|love|enjoy)\b | \bno\ \w+\ for\ (?:me|us)\b
            | 喜欢|讨厌|爱吃|最爱|不吃|不喝|过敏|从来|从不|习惯|宁愿|更愿意""",
        ),
        # Negation: what somebody does not do, or must not.
        (
            0.7,
            r"""\b(?:don['’]?t|doesn['’]?t|do\ not|does\ not|can['’]?t|cannot|mustn['’]?t|not)\b
              | 不[吃喝能要会想用]|没有|别""",
        ),
        # Decisions, promises and dates that are fixed.
        (
            1.5,
            r"""\b(?:decided|agreed|promised?|booked|booking|reserved|confirmed|scheduled|settled|appointment
              |deadline|due
            |expires?|remind|remember|meet|plan(?:s|ning)?\ to|going\ to|moving|want\ to|must|has\ to|have\ to)\b
            | \b(?:I|we)(?:['’]ll|\ will)\b
            | 决定|约定|答应|说好|预约|预订|预定|订了|截止|到期|提醒|记得|打算|计划|见面|搬到|结婚|生日""",
        ),
    )
)

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
_WIDE_GREETING = re.compile(
    r"\W*(?:你好|您好|早上好|上午好|中午好|下午好|晚上好|晚安|再见|拜拜|祝[您你]|谢谢|感谢|不客气|欢迎).{0,14}",
    re.DOTALL,
)
_ABOUT_THE_BOT = re.compile(
    r"""\b(?:I['’]?m|I\ am|as|being|just)\ (?:\w+\ ){0,3}(?:AI|artificial\ intelligence|(?:virtual|digital
      |automated)\ (?:assistant|agent)
      |chat\ ?bot|bot|(?:language|AI)\ model|(?:AI|virtual)[\w\ ]*assistant)\b
    | \b(?:how|what)\ (?:else\ )?(?:can|may|could)\ I\ (?:help|assist|do\ for)\b
    | \b(?:can|may|could)\ I\ (?:help|assist)\ (?:you\ )?(?:with\ )?(?:anything|something|today|further)\b
    | \b(?:anything|something)\ else\ (?:(?:that\ )?I\ can|you(?:['’]d|\ would)?\ (?:like|need)|today)
    | \b(?:here|happy|glad|ready)\ to\ (?:help|assist|answer)\b
    | \b(?:let\ me\ know|feel\ free|don['’]?t\ hesitate)\b[^.]{0,30}\b(?:help|assistance|questions?|ask
      |anything(?:\ else)?)\W*\Z
    | \bI\ (?:do\ not|don['’]?t|cannot|can['’]?t)\ (?:have|feel)\ (?:\w+\ )?(?:feelings|emotions|opinions|body
      |experiences)
    | 作为(?:一个|一名|一款)?\s?(?:AI|人工智能|语言模型|智能助手|虚拟助手|聊天机器人)
    | 我(?:只)?是(?:一个|一名|一款|您的|你的)?[^，。]{0,8}(?:AI|人工智能|机器人|语言模型|智能助手|虚拟助手)
    | 有什么[^，。！？]{0,6}(?:帮|为)[^，。]{0,8} | (?:很高兴|乐意|随时)(?:为|帮|愿意)?[^，。]{0,6}(?:服务|帮助|效劳)
    | 还有什么[^，。]{0,10}[？?] | 随时(?:告诉|联系|问|找)我""",
    re.IGNORECASE | re.VERBOSE,
)


def of_a_fact(sentence: str) -> float:
    """Return how much ``sentence`` has the form of a lasting fact: 0 has no signal, and 3 has several."""
    value = _IDENTIFIER_WEIGHT if has_identifier(sentence) else 0.0
    return value + sum(weight for weight, pattern in _SIGNALS if pattern.search(sentence))


def has_identifier(sentence: str) -> bool:
    """Whether ``sentence`` has an address of mail, a phone number, or the number or code of something."""
    return _IDENTIFIER.search(sentence) is not None


def is_idle(sentence: str) -> bool:
    """Whether ``sentence`` is a greeting or thanks as a whole, or is what a bot says about itself and its service."""
    return bool(_GREETING.fullmatch(sentence) or _WIDE_GREETING.fullmatch(sentence) or _ABOUT_THE_BOT.search(sentence))
