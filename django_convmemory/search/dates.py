"""Reads the days that a question names: "on 7 May", "letzte Woche", "hace dos días", "en mars", "去年五月".

The words of five languages become the same symbols, in capitals: "last week" becomes ``LAST WEEK``, and "la semana
pasada" ``WEEK LAST``. Rules turn these into two forms: ``DATE 7 5 2023``, where each number can be missing, and
``1 WEEK AGO``. The name of a month counts only beside a number or a word such as "in", because persons have such names.
Ranges of days are not read: "since March" names March, and "from 3 to 5 May" names 5 May.
"""

from __future__ import annotations

import calendar
import datetime as dt
import re
import unicodedata
from collections.abc import Callable, Sequence

# So many characters of a question are looked at.
MAX_LENGTH = 20_000
# So many dates of a question count, and so many times that are relative to today.
MAX_DATES = 16
# A date without a year is looked for in this year, and in so many years before.
YEARS_BACK = 10

_MARKS = re.compile("[\u0300-\u036f]")
# A text, and for each character the range of the question that it stands for.
_Traced = tuple[str, list[range]]
_Replacement = str | Callable[[re.Match[str]], str]

# The words of each symbol. Words have no accents here, "_" stands for a space, and "#" for the number of the group.
_WORDS = {
    "M#": "january januar janner enero janvier jan janv|february februar febrero fevrier feb fevr|marz marzo mar"
    "|april abril avril apr avr|mai mayo|june juni junio juin jun|july juli julio juillet jul"
    "|august agosto aout aug|september septiembre septembre sep sept|october oktober octubre octobre oct okt"
    "|november noviembre novembre nov|december dezember diciembre decembre dec dez dic",
    "W#": "monday montag lunes lundi|tuesday dienstag martes mardi|wednesday mittwoch miercoles mercredi"
    "|thursday donnerstag jueves jeudi|friday freitag viernes vendredi|saturday samstag sabado samedi"
    "|sunday sonntag domingo dimanche",
    "WEEK W#": "周一 星期一|周二 星期二|周三 星期三|周四 星期四|周五 星期五|周六 星期六|周日 星期日 星期天",
    "#": "一|two zwei dos deux a_couple_of 二 两|three drei tres trois 三|four vier cuatro quatre 四"
    "|five funf cinco cinq 五|six sechs seis 六|seven sieben siete 七|eight acht ocho huit 八|nine neun nueve neuf 九"
    "|ten zehn diez dix 十|十一|十二|十三|十四|十五|十六|十七|十八|十九|二十|二十一|二十二|二十三|二十四|二十五"
    "|二十六|二十七|二十八|二十九|三十|三十一",
    "EL": "the el la le l der den dem from von du",
    "OF": "of de del des d 的",
    "ONE": "a one ein eine einem einer un una une",
    "IN": "in on during early mid late beginning_of end_of since im anfang mitte ende seit en principios_de mediados_de"
    " finales_de desde debut fin mois_de mois_d depuis",
    "AM": "am vom",
    "BEFORE": "vor hace il_y_a",
    "AGO": "ago 前 之前 以前",
    "LAST": "last letzte letzten letzter letztes vorige vergangene pasado pasada dernier derniere 上 上个",
    "DAY": "day days tag tage tagen dia dias jour jours 天",
    "WEEK": "week weeks woche wochen semana semanas semaine semaines 周 星期",
    "MONTH": "month months monat monate monaten mes meses mois 个月",
    "YEAR": "year years jahr jahre jahres jahren ano anos an ans annee annees 年",
    "YUE": "月 月份",
    "RI": "日 号",
    "LAST YEAR": "去年",
    "1 DAY AGO": "hier yesterday last_night gestern ayer anoche 昨天 昨日 昨晚",
    "2 DAY AGO": "day_before_yesterday vorgestern anteayer avant-hier 前天",
    "2 WEEK AGO": "week_before_last vorletzte_woche 上上周 上上个星期",
    "1 MONTH AGO": "上个月 上月",
    # These are verbs too, or a planet.
    "X3": "march mars",
    "X5": "may",
    "": "in_mars on_mars mars_2020 个 about around etwa ungefahr unos unas environ 大概 大约",
}
_SYMBOLS = {
    word.replace("_", " "): symbol.replace("#", str(number))
    for symbol, groups in _WORDS.items()
    for number, words in enumerate(groups.split("|"), 1)
    for word in words.split()
}
# Not inside a word or a number. Chinese words need no space.
_EDGE = "(?:(?<![a-z0-9])|(?![a-z0-9]))"
_WORD = re.compile(rf"{_EDGE}(?:{'|'.join(sorted(_SYMBOLS, key=len, reverse=True))}){_EDGE}")

# Without one of these, a text names no date.
_TELLING = re.compile("[0-9]|DAY|WEEK|MONTH|YEAR|LAST|(?:IN|AM)[ -][MX]|YUE")
_N, _YEAR, _TH = "[0-9]{1,2}", "((?:19|20)[0-9]{2})(?![0-9])", "(?:st|nd|rd|th|er|o|[.])"
_OF_YEAR = rf"[.,]? ?(?:OF )?(?:EL )?{_YEAR}(?: YEAR)?"
_BEGIN, _END = "(?<![a-zA-Z0-9.,:/+-])", "(?![0-9]|[-./:,][0-9])"
# Each pattern is replaced in the whole text, one after the other.
_RULES = {
    # "2023-05-07", "2023/05/07"
    rf"{_BEGIN}{_YEAR}([-/])({_N})\2({_N}){_END}": r"DATE \4 \3 \1",
    # "07/05/2023" and "7/5/23" are two dates.
    rf"{_BEGIN}({_N})([-/])({_N})\2((?:19|20)?[0-9]{{2}}){_END}": r"DATE \1 \3 \4; DATE \3 \1 \4",
    # "7.5.2023"
    rf"{_BEGIN}({_N})[.]({_N})[.]{_YEAR}{_END}": r"DATE \1 \2 \3",
    # "am 7.5.", "am 7.5.23"
    rf"AM ({_N})[.]({_N})[.]([0-9]{{2}})?(?![0-9])": r"DATE \1 \2 \3",
    # "2023年5月7日", "5月7日", "2023年的5月", "5月"
    rf"(?:{_YEAR} YEAR (?:OF )?)?(?<![0-9])({_N}) YUE(?: ({_N}) RI)?": r"DATE \3 \2 \1",
    # "in may", "on 7 may", "7th of may", but not "the file it is in may be lost"
    rf"((?:IN|AM)[ -]|(?:IN|AM|EL) {_N} |[0-9]{_TH} (?:OF )?)X([35])(?! (?:be|have|not)\b)": r"\1M\2",
    # "mars 2023", "march 7, 2023", but not "march 20 miles"
    rf"\bX([35])(?=(?: {_N})?{_OF_YEAR})": r"M\1",
    # "sept jours" are seven days.
    r"\bM9 (DAY|WEEK|MONTH|YEAR)\b": r"7 \1",
    # "7 May 2023", "the 7th of May", "7. Mai", "7 de mayo de 2023"
    rf"{_BEGIN}({_N}){_TH}? (?:OF )?M([0-9]+)(?:{_OF_YEAR})?": r"DATE \1 \2 \3",
    # "May 7", "May 7th, 2023"
    rf"\bM([0-9]+)[.]? ({_N}){_TH}?(?![a-z0-9%:]|[.][0-9])(?:{_OF_YEAR})?": r"DATE \2 \1 \3",
    # "May 2023", "mayo del año pasado"
    rf"\bM([0-9]+){_OF_YEAR}": r"DATE  \1 \2",
    # "mars dernier", "marzo pasado"
    r"\bM([0-9]+) LAST\b": r"LAST DATE  \1 ",
    # "in May", "last May", "mid-May"
    r"\b(IN|AM|LAST)[ -]M([0-9]+)": r"\1 DATE  \2 ",
    # "in 2023", "im Jahr 2023", "2023年"
    rf"\b(?:IN|AM) (?:EL )?(?:YEAR )?{_YEAR}(?![a-z]|[-./:,][0-9])|{_YEAR} YEAR": r"DATE   \1\2",
    # "a week", "einer Woche"
    r"\bONE (DAY|WEEK|MONTH|YEAR)\b": r"1 \1",
    # "vor 3 Tagen", "hace tres días", "il y a trois jours"
    r"\bBEFORE ([0-9]{1,3} [A-Z]+)": r"\1 AGO",
    # "last week", "el mes pasado", but not "the last week of the project"
    r"\bLAST (WEEK|MONTH)\b(?! OF)|\b(WEEK|MONTH) LAST\b": r"1 \1\2 AGO",
    # "last Friday", "on Friday", "viernes pasado", but neither "on Friday, 7 May" nor "el viernes de la semana pasada"
    r"\b(?:LAST|IN|AM|EL) W([1-7])(?: LAST\b)?(?!,? (?:OF |EL )*(?:DATE|1 WEEK))|\bW([1-7]) LAST\b": r"1 W\1\2 AGO",
}
_PATTERNS = [(re.compile(pattern), replacement) for pattern, replacement in _RULES.items()]
# Words before a date belong to it: "on Friday, 7 May".
_ON = "(?:(?:IN|AM|EL|OF) )*"
_DATE = re.compile(f"{_ON}(?:W[1-7],? {_ON})?(LAST )?DATE ([0-9]*) ([0-9]*) ([0-9]*)")
# A weekday of a week is before or after it: "Friday last week", "上周五".
_AGO = re.compile(rf"{_ON}(?:W(\d) {_ON})?(?<![a-z0-9.])([0-9]{{1,3}}) (DAY|WEEK|MONTH|YEAR|W\d) AGO(?: W(\d))?")


def periods(text: str, today: dt.date) -> list[tuple[range, range]]:
    """Return the days that ``text`` names, as ordinals (``date.toordinal``), each range with where it is named.

    A date without a year is looked for in several years. Weeks begin on Monday.
    """
    normal, places = _normal(text[:MAX_LENGTH], today)
    found = [(days, date) for date in [*_DATE.finditer(normal)][:MAX_DATES] for days in _dates(today, *date.groups(""))]
    found += [(_ago(today, *date.groups("")), date) for date in [*_AGO.finditer(normal)][:MAX_DATES]]
    return [(days, _joined(places, date)) for days, date in found if days and days[0] > 0]


def _normal(text: str, today: dt.date) -> _Traced:
    """Return ``text`` with its dates in the two forms that are told at the top."""
    traced = text, [range(at, at + 1) for at in range(len(text))]
    text, places = _replaced(traced, "[^\0-~]", lambda letter: _MARKS.sub("", unicodedata.normalize("NFKD", letter[0])))
    # With a capital letter, they are months. The other words have the same length.
    text = re.sub(r"\bMay\b", "mai", re.sub(r"\bMarch\b", "marzo", text[:MAX_LENGTH])).lower()
    if not re.search(r"\b(?:tu|nous|vous|qu|que|quoi|quel|quelle|le|les|est|ai|etait)\b", text):
        text = re.sub(r"\bhier\b", "here", text)  # It is German.
    traced = _replaced((text, places), _WORD, _symbol)
    if not _TELLING.search(traced[0]):
        return "", []
    traced = _replaced(traced, r"[\s'’]+", " ")
    traced = _replaced(traced, "LAST YEAR|YEAR LAST", f"{today.year - 1} YEAR")
    for pattern, replacement in _PATTERNS:
        traced = _replaced(traced, pattern, replacement)
    return traced


def _symbol(word: re.Match[str]) -> str:
    return _SYMBOLS[word[0]] if word[0].isascii() else f" {_SYMBOLS[word[0]]} "


def _replaced(traced: _Traced, pattern: str | re.Pattern[str], replacement: _Replacement) -> _Traced:
    """Replace what ``pattern`` matches, as ``re.sub`` does. Each new character stands for all that it replaces."""
    text, places = traced
    texts: list[str] = []
    moved: list[range] = []
    end = 0
    for match in re.finditer(pattern, text):
        new = match.expand(replacement) if isinstance(replacement, str) else replacement(match)
        texts += text[end : match.start()], new
        moved += places[end : match.start()] + [_joined(places, match)] * len(new)
        end = match.end()
    return "".join([*texts, text[end:]]), moved + places[end:]


def _joined(places: Sequence[range], match: re.Match[str]) -> range:
    return range(places[match.start()].start, places[match.end() - 1].stop)


def _dates(today: dt.date, last: str, day: str, month: str, year: str) -> list[range]:
    """Return the days of a date. Without a year, they are those of each year, the last one first, up to today."""
    if year:
        return [_days(day, month, int(year) + 2000 * (len(year) == 2))]
    each = [_days(day, month, today.year - back) for back in range(YEARS_BACK + 1)]
    if last:
        return [days for days in each if days and days[-1] < today.toordinal()][:1]
    return [days for days in each if days and days[0] <= today.toordinal()]


def _days(day: str, month: str, year: int) -> range:
    """Return the days of a day, a month or a year. There are none if there is no such date."""
    try:
        first = dt.date(year, int(month or 1), int(day or 1))
    except ValueError:
        return range(0)
    length = 1 if day else calendar.monthrange(year, first.month)[1] if month else 365 + calendar.isleap(year)
    return range(first.toordinal(), first.toordinal() + length)


def _ago(today: dt.date, before: str, number: str, unit: str, after: str) -> range:
    """Return the days of ``1 WEEK AGO``, of a weekday in it, or of the last weekday: ``1 W2 AGO``."""
    n, weekday = int(number), before or after
    if unit == "YEAR":
        return _days("", "", today.year - n)
    if unit == "MONTH":
        year, month = divmod(today.year * 12 + today.month - 1 - n, 12)
        return _days("", str(month + 1), year)
    now = today.toordinal()
    if unit == "WEEK":
        monday = now - today.weekday() - 7 * n
        return range(monday + int(weekday) - 1, monday + int(weekday)) if weekday else range(monday, monday + 7)
    back = n if unit == "DAY" else (today.isoweekday() - int(unit[1])) % 7 or 7
    return range(now - back, now - back + 1)
