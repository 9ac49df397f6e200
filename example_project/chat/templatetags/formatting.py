from django import template

from chat.formatting import html_of

register = template.Library()
register.filter("formatted", html_of)
