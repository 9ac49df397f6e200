from django import template

from chat.formatting import html_of
from chat.recalls import positions

register = template.Library()
register.filter("formatted", html_of)
register.filter("recalled", positions)
