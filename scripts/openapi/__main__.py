"""Write the schema."""

from __future__ import annotations

import os

import django

os.environ.setdefault("DJANGO_SETTINGS_MODULE", "tests.settings")
django.setup()

from django_convmemory.api import openapi  # noqa: E402
from scripts.openapi.schema import generate  # noqa: E402

openapi.PATH.write_text(generate(), encoding="utf-8")
