"""How the admin writes numbers, durations, costs and moments, on all pages. Its templates use these as filters."""

from __future__ import annotations

import datetime as dt
from decimal import Decimal

from django import template
from django.utils.formats import date_format, number_format
from django.utils.html import format_html
from django.utils.timezone import template_localtime  # type: ignore[attr-defined]
from django.utils.translation import gettext as _, ngettext

from django_convmemory import conf

register = template.Library()
MINUTE, HOUR, DAY = 60, 3600, 86_400
# Rows that may be many are counted up to this number, and one more.
MOST_COUNTED = 1000


@register.filter
def number(value: int | str | None) -> str:
    """Return a number with its thousands apart. A position, a version or another name of something has none."""
    return "–" if value is None else number_format(value, 0, force_grouping=True)


@register.filter
def counted(rows: int) -> str:
    """Return a number of rows. If there are more than are counted, it ends with a plus sign: "1,000+"."""
    return number(rows) if rows <= MOST_COUNTED else f"{number(MOST_COUNTED)}+"


@register.filter
def tokens(value: int) -> str:
    return ngettext("%(n)s token", "%(n)s tokens", value) % {"n": number(value)}


@register.filter
def duration(seconds: float | dt.timedelta) -> str:
    """Return a duration in its natural unit: "1.9 s", "45 s", "19 min", "5 h" or "3 d"."""
    value = seconds.total_seconds() if isinstance(seconds, dt.timedelta) else float(seconds)
    if value < 10:
        return _("%(number)s s") % {"number": number_format(value, 1)}
    if value < 2 * MINUTE:
        return _("%(number)s s") % {"number": number_format(value, 0)}
    if value < 2 * HOUR:
        return _("%(number)s min") % {"number": number_format(value / MINUTE, 0)}
    if value < 2 * DAY:
        return _("%(number)s h") % {"number": number_format(value / HOUR, 0)}
    return _("%(number)s d") % {"number": number_format(value / DAY, 0, force_grouping=True)}


@register.filter
def cost(amount: Decimal | float | None) -> str:
    """Return an amount with the currency of the settings, if they name one. Small amounts keep two digits."""
    if amount is None:
        return "–"
    # A sum that the database has made in floating-point numbers has digits that mean nothing.
    amount = Decimal(f"{amount:.6g}") if isinstance(amount, float) else amount
    # adjusted() is the power of ten of the first digit.
    places = max(2, 1 - amount.adjusted()) if amount else 2
    number = number_format(round(amount, places), places, force_grouping=True)
    currency = conf.currency()
    return f"{number}\N{NO-BREAK SPACE}{currency}" if currency else number


@register.filter
def moment(value: dt.datetime | None) -> str:
    """Return a date and a time with its seconds as HTML, in the site's time zone."""
    if value is None:
        return "–"
    local = template_localtime(value)
    return format_html('<time datetime="{}">{}</time>', local.isoformat(), f"{date_format(local)} {local:%H:%M:%S}")
