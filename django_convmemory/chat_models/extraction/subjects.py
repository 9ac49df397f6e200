"""The subject of a Chinese sentence that leaves it out: "评分是4.1分" says it of the hotel that was named before.

Chinese drops a subject that the listener knows. A sentence that is chosen for a summary stands without those before it,
so it takes the subject along, in brackets: "（北京饭店）评分是4.1分。"
"""

from __future__ import annotations

import re

# What a name of a place or of an organization ends with.
_ENDING = (
    "(?:酒店|宾馆|饭店|旅馆|旅店|客栈|公寓|大厦|中心|餐厅|餐馆|饭馆|饭庄|山庄|酒楼|食府|烤鸭|火锅|小吃|美食|咖啡|茶馆|公园|景区|花园|乐园|胡同"
    "|大学|学院|医院|公司|银行|车站|机场|广场|市场|商场|故居|遗址|[店馆园寺庙宫塔陵城山湖村街路院楼桥门坛站府居屋坊阁轩])"
)
_NAME_CHARACTER = r"[\u4e00-\u9fffA-Za-z0-9·&'’-]"
# Words before a name, and words that a name is not.
_BEFORE = (
    "推荐|建议|选择|可以|预订|预定|入住|周边|附近|旁边|知道|查询|看看|试试|觉得|叫做|名叫|就是|还是|还有|或者|以及|以后|然后|那么|麻烦|请问|告诉"
    "|想去|要去|再去|去|到|在|住|吃|逛|找|选|叫|是|您|你|我|帮|给|请|那|就|和|跟|与|或|有|离|从|的|后|景点"
)
_START = re.compile(f".*(?:{_BEFORE})(?=[\u4e00-\u9fffA-Za-z]{{2}})")
_NAME = re.compile(
    rf"{_NAME_CHARACTER}{{2,24}}[(（][^()（）]{{1,20}}店[)）]|{_NAME_CHARACTER}{{1,24}}?{_ENDING}(?![\u4e00-\u9fff]*{_ENDING})(?:[(（][^()（）]{{1,20}}[)）])?|《[^《》]{{1,20}}》"
)
_LONGEST = 320
_CLAUSE = re.compile(r"[，。！？；、,!?;:：\s]+")
_TWICE = re.compile(f"({_ENDING})\\1\\Z")
_KIND = "(?:酒店|宾馆|饭店|旅馆|餐厅|餐馆|饭馆|景点|景区|公园|小吃|美食|火锅|地铁站|车站)"
_GENERAL = re.compile(
    rf"{_KIND}|.{{0,4}}(?:[这那哪该此每某几两一个家间座别些啥其]|经济|舒适|高档|豪华|商务|免费|便宜|美味|好玩|不错|类型|附近|周边|什么|多少)型?{_ENDING}\Z"
)
# What something with a name has: "X的电话是多少", "地址是…".
_ATTRIBUTE = (
    "(?:联系|订餐|预订|酒店|餐馆|餐厅|景点|人均|平均|营业|开放|游玩|最低|具体|详细)*(?:电话|手机号|号码|地址|位置|评分|门票|票价|价格|价钱|房价"
    "|费用|人均|消费|时间|时长|类型|设施|服务|推荐菜|招牌菜|特色菜|网址|邮箱|楼层)"
)
_PRONOUN = (
    "(?:[它他她]们?|(?:这|那|该|此)(?:[家个座间所]|里|儿|边)?(?:酒店|宾馆|饭店|餐馆|餐厅|景点|景区|地方|店)?"
    "|(?:酒店|宾馆|饭店|餐馆|餐厅|景点|景区)(?=[的有是提可能没不]))"
)
_WITHOUT_SUBJECT = re.compile(f"(?:{_PRONOUN}(?:家|的)?|{_ATTRIBUTE})")
_ASKED = re.compile(f"(?P<name>.{{2,25}}?)(?:[这那][家个座间所]|的?{_ATTRIBUTE})")
_SUBJECT = re.compile(r"\A（[^（）]*(?:（[^（）]*）)?）")
_DIGIT = re.compile(r"\d")
_QUESTION = re.compile(r"[?？][”」』）)]*\Z|(?:多少|什么|哪里|哪儿|吗|呢)[啊呀呢吧]?。?\Z")


def named(sentence: str) -> list[str]:
    """Return the names of places and organizations in a Chinese ``sentence``, as far as their endings tell."""
    names = []
    for clause in _CLAUSE.split(sentence[:_LONGEST]):
        for match in _NAME.finditer(clause):
            name = match.group()
            name = _START.sub("", name) if len(name) > 2 else name
            name = _TWICE.sub(r"\1", name)
            if len(name) > 1 and "的" not in name and not _GENERAL.match(name):
                names.append(name)
    return list(dict.fromkeys(names))


def without(sentence: str) -> str:
    """Return ``sentence`` without the subject that :class:`Subjects` has put before it."""
    return _SUBJECT.sub("", sentence)


class Subjects:
    """Adds the subject to sentences that leave it out, in the order of the conversation."""

    def __init__(self) -> None:
        self._last = ""
        self._asked = ""

    def hear(self, sentence: str) -> None:
        """Take note of the names in a ``sentence`` of somebody who asks, and of what it asks about."""
        names = named(sentence)
        if not names and (match := _ASKED.match(_CLAUSE.split(sentence)[0])):
            name = _START.sub("", match["name"]).strip("的")
            names = [name] if len(name) > 1 and not _WITHOUT_SUBJECT.search(name) else []
        self._remember(names)
        if _QUESTION.search(sentence):
            self._asked = names[0] if names else self._last

    def complete(self, sentence: str, *, first: bool) -> str:
        """Return a ``sentence`` of somebody who answers, with its subject in brackets before it if it has none.

        ``first`` says that it directly follows what the other said.
        """
        names = named(sentence)
        leaves_out = _WITHOUT_SUBJECT.match(sentence) is not None
        if leaves_out or (first and self._asked and (not names or _DIGIT.search(sentence))):
            subject = self._asked or self._last
            if subject and subject not in sentence:
                sentence = f"（{subject}）{sentence}"
        if "地址" not in sentence:
            self._remember(names)
        return sentence

    def _remember(self, names: list[str]) -> None:
        if names:
            self._last = names[0] if len(names) == 1 else ""

    def new_turn(self) -> None:
        """Begin a turn of somebody who asks."""
        self._asked = ""
