"""The documentation as a site: ``make docs``."""

import functools
import pathlib
import re
import tomllib
from typing import Any

import django
from django.conf import settings
from django.core.management import get_commands, load_command_class
from django.core.management.base import DjangoHelpFormatter

project = "django_convmemory"
author = "django-convmemory contributors"
copyright = author  # noqa: A001  its name in Sphinx
extensions = ["myst_parser", "sphinx.ext.autodoc"]
html_theme = "furo"
html_title = "django-convmemory"
html_static_path = ["_static"]
html_css_files = ["custom.css"]
root_doc = "index"
source_suffix = {".md": "markdown"}
exclude_patterns = ["_build"]
myst_heading_anchors = 3
myst_enable_extensions = ["colon_fence"]
autodoc_member_order = "bysource"
autodoc_typehints = "description"
autodoc_typehints_description_target = "documented"
autodoc_preserve_defaults = True
add_module_names = False

with (pathlib.Path(__file__).parent.parent / "pyproject.toml").open("rb") as file:
    SOURCE = tomllib.load(file)["project"].get("urls", {}).get("Source")

# What autodoc imports is the code of a Django app.
settings.configure(
    INSTALLED_APPS=[
        "django.contrib.contenttypes",
        "django.contrib.auth",
        "rest_framework",
        "django_convmemory",
        "django_convmemory.contrib.partitions",
    ],
    CONVMEMORY={"default": {"MEMORY": "django_convmemory.memory.ConversationBufferMemory"}},
    USE_TZ=True,
)
django.setup()


def setup(app: Any) -> None:
    """Fill in what the commands print, and link the files that are no pages, if there is a repository."""
    app.connect("source-read", lambda app, name, content: read(content))


def read(content: list[str]) -> None:
    for name in ("README", "SECURITY"):
        if f"{{{{ {name} }}}}" in content[0]:
            whole = (pathlib.Path(__file__).parent.parent / f"{name}.md").read_text(encoding="utf-8")
            content[0] = (
                whole.replace("](docs/", "](").replace("](SECURITY", "](../SECURITY").replace("](CONTR", "](../CONTR")
            )
        content[0] = re.sub(rf"\]\((?:\.\./)+{name}\.md", f"](/{name.lower()}.md", content[0])
    text = content[0].replace("{{ COMMANDS }}", commands())
    outside = r"\((?:\.\./)+((?:example_project/|django_convmemory/|README|CONTRIBUTING)[^)]*)\)"
    if SOURCE:
        content[0] = re.sub(rf"\]{outside}", rf"]({SOURCE}/blob/main/\1)", text)
    else:
        content[0] = re.sub(rf"\[([^]]*)\]{outside}", r"\1", text)


def commands() -> str:
    """Return what each command's ``--help`` says, but for the options of all Django commands."""
    ours = sorted((name, str(app)) for name, app in get_commands().items() if str(app).startswith("django_convmemory"))
    parts = []
    for name, app in ours:
        parser = load_command_class(app, name).create_parser("manage.py", name)
        parser.formatter_class = functools.partial(DjangoHelpFormatter, max_help_position=30, width=86)
        shared = {"--version", "--verbosity", "--settings", "--pythonpath", "--traceback", "--no-color"}
        shared |= {"--force-color", "--skip-checks"}
        parser._actions = [action for action in parser._actions if shared.isdisjoint(action.option_strings)]
        for group in parser._action_groups:
            group._group_actions = [action for action in group._group_actions if action in parser._actions]
        parts.append(f"### {name}\n\n```text\n{parser.format_help()}```\n")
    return "\n".join(parts)
