"""Everyday facts that are planted into ordinary chat, to see which of them a summary keeps.

A fact is a role, a text, and the key words that must all be in the summary. The parameters of the extractive model were
chosen on the part "dev". The part "held out" only checks them.
"""

from __future__ import annotations

import random
from typing import NamedTuple


class Fact(NamedTuple):
    """What is said once, by whom, and the words by which a summary that keeps it is recognized."""

    role: str
    text: str
    words: tuple[str, ...]


def _user(text: str, *words: str) -> Fact:
    return Fact("user", text, words)


def _bot(text: str, *words: str) -> Fact:
    return Fact("assistant", text, words)


ENGLISH: dict[str, tuple[Fact, ...]] = {
    "dev": (
        _user("My cat is called Miso.", "cat", "miso"),
        _user("I'm allergic to peanuts.", "allergic", "peanut"),
        _user("We meet on Tuesday at the Kings Arms.", "tuesday", "kings arms"),
        _user("By the way, my order number is 88123-B.", "88123-b"),
        _user("I can't stand coriander.", "coriander"),
        _user("I really prefer window seats when I fly.", "window seat"),
        _user("My daughter Elif turns seven on 14 March.", "elif", "14 march"),
        _user("I work as a nurse at St Thomas' Hospital.", "nurse"),
        _user("I grew up in Gdansk but I live in Leeds now.", "gdansk", "leeds"),
        _user("The rent goes up to £1,150 in January.", "1,150"),
        _user("Our anniversary is the 3rd of October.", "anniversary", "october"),
        _user("The deadline for the grant application is 30 September.", "grant", "30 september"),
        _user("I don't eat pork.", "pork"),
        _user("Call me on 0161 496 0733 if anything changes.", "0161 496 0733"),
        _user("My brother Tomasz is getting married in Krakow.", "tomasz", "krakow"),
        _user("I drive a green Volvo estate.", "volvo"),
        _user("We're planning to move to Portugal next spring.", "portugal"),
        _user("My landlord's name is Mr Okafor.", "landlord", "okafor"),
        _user("I have two sons, Ben and Idris.", "ben", "idris"),
        _user("My favourite band is Khruangbin.", "khruangbin"),
        _user("I take 20 mg of lisinopril every morning.", "lisinopril"),
        _user("Please never call before noon, I work nights.", "noon", "nights"),
        _user("I've decided to sell the piano.", "sell", "piano"),
        _user("my email is rosa.lind@example.org btw", "rosa.lind@example.org"),
        _user("The dog hates fireworks, so we stay home on New Year's Eve.", "fireworks"),
        _user("I study marine biology in Galway.", "marine biology", "galway"),
        _user("Remind me that the dentist is at 9:40 on Friday.", "dentist", "9:40"),
        _user("I promised Greta that I would water her plants in August.", "greta", "plants"),
        _user("We live at 12 Harbour Row.", "12 harbour row"),
        _user("I'm vegetarian, and my wife is vegan.", "vegetarian", "vegan"),
        _bot("Your appointment with Dr Sato is confirmed for 11 June at 15:30.", "sato", "11 june"),
        _bot("I have booked you a table for four at Trattoria Lupo.", "trattoria lupo"),
        _bot("The tracking code of your parcel is ZX-4471-Q.", "zx-4471-q"),
        _bot("Your refund of 64.90 euros was sent to your bank.", "64.90"),
        _bot("The wifi password is bluefish77.", "bluefish77"),
        _bot("So we agreed that I send the draft by Thursday evening.", "draft", "thursday"),
        _bot("The spare key is with your neighbour Halima.", "key", "halima"),
        _bot("Your flight leaves from gate B14 at 07:25.", "b14", "07:25"),
        _bot("The warranty of the boiler runs out in May 2027.", "boiler", "may 2027"),
        _bot("The cheapest plan costs 9 euros a month and has no contract.", "9 euros", "contract"),
    ),
    "held out": (
        _user("Our rabbit answers to Pickles.", "rabbit", "pickles"),
        _user("Shellfish makes me really ill, so none of that for me.", "shellfish"),
        _user("Let's see each other on Saturday at the Blue Anchor.", "saturday", "blue anchor"),
        _user("The booking reference is QT7-9920.", "qt7-9920"),
        _user("I've never liked olives.", "olives"),
        _user("Aisle seats are what I always choose on trains.", "aisle"),
        _user("Mum's birthday is on the 22nd of July.", "birthday", "july"),
        _user("I'm a plumber by trade.", "plumber"),
        _user("Before Bristol we lived in Nairobi for six years.", "bristol", "nairobi"),
        _user("I pay 740 pounds a month for the flat.", "740"),
        _user("My husband Kofi starts his new job at Renault on Monday.", "kofi", "renault"),
        _user("The tax return has to be in by 31 January.", "tax", "31 january"),
        _user("No dairy for me, it upsets my stomach.", "dairy"),
        _user("You can reach me at 07700 900461.", "07700 900461"),
        _user("My sister lives in Trondheim with her three kids.", "sister", "trondheim"),
        _user("I ride an old Triumph motorbike to work.", "triumph"),
        _user("Next summer we want to walk the Camino.", "camino"),
        _user("The vet is called Dr Adeyemi.", "vet", "adeyemi"),
        _user("My twins go to Oakfield Primary.", "twins", "oakfield"),
        _user("Nothing beats Miyazaki films for me.", "miyazaki"),
        _user("I have been diabetic since I was nine.", "diabetic"),
        _user("Don't send letters to the old address any more.", "letters", "old address"),
        _user("We settled on grey tiles for the kitchen.", "grey tiles"),
        _user("write to me at j.moreau@example.net please", "j.moreau@example.net"),
        _user("Thunder scares our old collie.", "thunder", "collie"),
        _user("I'm doing a master's in linguistics at Ghent.", "linguistics", "ghent"),
        _user("The plumber comes on Wednesday between 8 and 10.", "plumber", "wednesday"),
        _user("I told Wanda I'd pick her up from the station.", "wanda", "station"),
        _user("Our new place is Flat 5, 88 Mill Lane.", "88 mill lane"),
        _user("I gave up alcohol two years ago.", "alcohol"),
        _bot("The surgery moved your check-up to 4 November, 8:15.", "4 november", "8:15"),
        _bot("Two tickets for the Philharmonic are reserved in your name.", "philharmonic"),
        _bot("Your case has the number HD-55210.", "hd-55210"),
        _bot("They charge 35 dollars for a checked bag.", "35 dollars"),
        _bot("The door code is 4816#.", "4816"),
        _bot("I will call the insurer for you tomorrow morning.", "insurer"),
        _bot("Your charger is in the drawer under the printer.", "charger", "drawer"),
        _bot("The ferry to Naxos departs at 17:05 from Piraeus.", "naxos", "17:05"),
        _bot("Your passport expires in February 2028.", "passport", "february 2028"),
        _bot("The museum is closed on Mondays, but free after five.", "museum", "mondays"),
    ),
}

CHINESE: dict[str, tuple[Fact, ...]] = {
    "dev": (
        _user("我的猫叫年糕。", "年糕"),
        _user("我对花生过敏。", "花生", "过敏"),
        _user("我们周二晚上在老舍茶馆见面。", "周二", "老舍茶馆"),
        _user("对了，我的订单号是88123-B。", "88123-B"),
        _user("我最讨厌吃香菜。", "香菜"),
        _user("我女儿叫小雨，今年七岁。", "小雨", "七岁"),
        _user("我在协和医院当护士。", "护士"),
        _user("我老家在哈尔滨，现在住在苏州。", "哈尔滨", "苏州"),
        _user("房租一个月4200元。", "4200"),
        _user("申请的截止日期是9月30日。", "截止", "9月30日"),
        _user("我不吃猪肉。", "猪肉"),
        _user("我的手机号是13800138000。", "13800138000"),
        _user("我弟弟下个月在成都结婚。", "弟弟", "成都"),
        _user("我打算明年春天搬到杭州。", "搬到杭州"),
        _user("我喜欢靠窗的座位。", "靠窗"),
        _bot("您的快递单号是SF-4471-Q。", "SF-4471-Q"),
        _bot("已经为您预约了6月11日下午3点的王医生。", "6月11日", "王医生"),
        _bot("无线密码是bluefish77。", "bluefish77"),
        _bot("退款64.9元已经退回您的银行卡。", "64.9"),
        _bot("您的航班7点25分从B14登机口起飞。", "B14"),
    ),
    "held out": (
        _user("我家狗狗的名字是豆豆。", "豆豆"),
        _user("海鲜我吃了会起疹子。", "海鲜", "疹子"),
        _user("周六下午我们在西单图书大厦碰头吧。", "周六", "西单图书大厦"),
        _user("预订编号是QT7-9920。", "QT7-9920"),
        _user("我从来不喝咖啡。", "咖啡"),
        _user("妈妈的生日是7月22日。", "生日", "7月22日"),
        _user("我是做水管维修的。", "水管"),
        _user("搬来青岛之前我在昆明住了六年。", "青岛", "昆明"),
        _user("我老公下周一到华为上班。", "老公", "华为"),
        _user("报税要在1月31日之前交。", "报税", "1月31日"),
        _user("我乳糖不耐受，别放牛奶。", "乳糖"),
        _user("有事请打0532-8655-0461找我。", "0532-8655-0461"),
        _user("我姐姐在挪威，有三个孩子。", "姐姐", "挪威"),
        _user("明年夏天我们想去新疆自驾。", "新疆"),
        _user("我更愿意坐过道的位子。", "过道"),
        _bot("您的工单编号为HD-55210。", "HD-55210"),
        _bot("体检改到11月4日8点15分了。", "体检", "11月4日"),
        _bot("门禁密码是4816。", "4816"),
        _bot("您的护照2028年2月到期。", "护照", "2028年2月"),
        _bot("我明天上午帮您联系保险公司。", "保险公司"),
    ),
}

_SUBJECTS = (
    "the weather", "that new series", "the traffic", "a podcast about whales", "the football", "my old bike",
    "the soup",
    "that bakery", "the garden", "a film from the eighties", "the news", "the crossword",
    "my neighbour's band",
    "the park",
    "a book about trains", "the museum shop", "the choir", "this app", "the long queue", "a documentary on volcanoes",
)  # fmt: skip
_OPINIONS = (
    "was really something today", "made me laugh a lot", "is not what it used to be", "could be a bit better",
    "keeps me busy in the evenings", "reminds me of school", "was quieter than usual", "took far too long again",
    "is nicer than I thought", "gets better every time", "was a bit of a mess", "always cheers me up",
)  # fmt: skip
_REPLIES = (
    "That sounds good! What did you like most about {}?", "I see. How long have you been thinking about {}?",
    "Ha, {} again! Tell me more.", "Many people feel that way about {}. Did anything surprise you?",
    "Oh yes, {} can be like that. I hope the rest of the day was fine.",
    "I'm glad to hear it. Is there more to say of {}?",
)  # fmt: skip
_CHINESE_SUBJECTS = (
    "今天的天气", "那部新剧",
    "路上的车", "昨天的球赛", "楼下的面馆", "公园里的花", "那本小说", "早上的新闻",
    "邻居家的音乐",
    "这个软件", "排队的人", "那部老电影", "小区的猫", "超市的水果", "周末的集市", "办公室的空调",
)  # fmt: skip
_CHINESE_OPINIONS = (
    "真让人开心", "不如以前了", "比想的好一些", "总是这样慢", "让我想起上学的时候", "有点乱", "挺安静的",
    "越来越有意思",
)  # fmt: skip
_CHINESE_REPLIES = (
    "听起来不错，您最喜欢{}的哪一点？", "{}确实会这样，希望您今天过得愉快。",
    "哈哈，又是{}，多说说吧。",
    "很多人对{}都有这种感觉。", "明白了，您怎么看{}？", "好的，关于{}还有什么想聊的吗？",
)  # fmt: skip


def small_talk(random_: random.Random, messages: int, *, chinese: bool = False) -> list[tuple[str, str]]:
    """Return so many turns of generated chat, role and text, in which nothing is said that matters."""
    subjects = _CHINESE_SUBJECTS if chinese else _SUBJECTS
    opinions = _CHINESE_OPINIONS if chinese else _OPINIONS
    replies = _CHINESE_REPLIES if chinese else _REPLIES
    turns: list[tuple[str, str]] = []
    while len(turns) < messages:
        subject, opinion = random_.choice(subjects), random_.choice(opinions)
        said = f"{subject}{opinion}。" if chinese else f"{subject} {opinion}.".capitalize()
        turns += [("user", said), ("assistant", random_.choice(replies).format(subject))]
    return turns[:messages]


def planted(
    random_: random.Random, filler: list[tuple[str, str]], facts: tuple[Fact, ...], number: int
) -> tuple[list[tuple[str, str]], list[Fact]]:
    """Return ``filler`` with ``number`` of ``facts`` in it at random places, and these facts.

    Every other fact is a message of its own. The rest are appended to what the same role says at that place, if it
    speaks there.
    """
    chosen = random_.sample(facts, number)
    turns = list(filler)
    for order, fact in enumerate(chosen):
        place = random_.randrange(len(turns))
        role, text = turns[place]
        if order % 2 and role == fact.role:
            turns[place] = (role, f"{text} {fact.text}")
        else:
            turns.insert(place, (fact.role, fact.text))
    return turns, chosen
