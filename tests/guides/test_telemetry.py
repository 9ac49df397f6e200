"""docs/guides/telemetry.md, the dashboard and the alerts name what the app reports."""

from __future__ import annotations

import dataclasses
import json
import logging
import re
from typing import Any

import pytest
import yaml
from django.conf import settings as django_settings
from django.core.checks import run_checks
from django.urls import URLPattern, URLResolver

from django_convmemory import observers
from django_convmemory.chat_models.base import ChatResponse, Usage
from django_convmemory.chat_models.scripted import ScriptedChatModel
from django_convmemory.conf import from_settings
from django_convmemory.contrib.monitoring import conf as monitoring_conf, figures
from django_convmemory.contrib.monitoring.figures import Backlog
from django_convmemory.contrib.telemetry.observer import NAME, TelemetryOptions
from django_convmemory.messages import ChatMessage
from tests.folding import build, talk
from tests.guides.test_pages import FOLDER, PAGES, module_of
from tests.telemetry.conftest import reporting_to_memory

PAGE = PAGES["telemetry"]
DASHBOARD = (FOLDER / "grafana-dashboard.json").read_text(encoding="utf-8")
SETTINGS = re.findall(r"```python\n# settings.py\n(.*?)```", PAGE, re.DOTALL)
RULES = re.search(r"```yaml\n# convmemory\.rules\.yml\n(.*?)```", PAGES["production"], re.DOTALL)
METRICS = re.findall(r"^# TYPE (\w+)", figures.text({"default": Backlog()}, []), re.MULTILINE)


def rows(section: str) -> list[list[str]]:
    """Return the cells of the table in a section of telemetry.md."""
    prose = re.sub(r"```.*?```", "", PAGE, flags=re.DOTALL)
    text = re.split(r"\n#+ ", prose.partition(f"# {section}\n")[2])[0]
    return [
        [cell.strip().strip("`") for cell in line.split("|")[1:-1]]
        for line in text.splitlines()
        if line.startswith("| `")
    ]


def names_in(expressions: str) -> set[str]:
    return set(re.findall(r"\bconvmemory_\w+", expressions))


def labels_in(expressions: str) -> set[tuple[str, str]]:
    """Return each metric with each label that an expression selects by."""
    return {
        (name, label)
        for name, selector in re.findall(r"\b(convmemory_\w+)\{([^}]*)\}", expressions)
        for label in re.findall(r"(\w+)(?:=|!=|=~|!~)\"", selector)
    }


@pytest.mark.django_db
def test_the_settings_pass_the_checks_and_turn_telemetry_on(settings: Any) -> None:
    namespace: dict[str, Any] = {"INSTALLED_APPS": list(django_settings.INSTALLED_APPS)}
    for code in SETTINGS:
        exec(code, namespace)  # noqa: S102
    settings.CONVMEMORY_MONITORING = namespace["CONVMEMORY_MONITORING"]
    settings.CONVMEMORY_TELEMETRY = namespace["CONVMEMORY_TELEMETRY"]

    assert [message for message in run_checks() if message.id == "convmemory.E013"] == []
    assert from_settings(TelemetryOptions, NAME) == TelemetryOptions()
    assert monitoring_conf.options() == monitoring_conf.MonitoringOptions()
    settings.INSTALLED_APPS = namespace["INSTALLED_APPS"]
    added = observers.registered
    try:
        assert [type(observer).__name__ for observer in added] == ["Telemetry"]
    finally:
        for observer in added:
            observers.remove(observer)


def test_the_tables_have_every_key_with_its_default() -> None:
    for section, options in (
        ("Settings", TelemetryOptions),
        ("Prometheus", monitoring_conf.MonitoringOptions),
    ):
        table = {row[0]: row[1] for row in rows(section) if row[0].isupper()}
        assert table == {field.name.upper(): str(field.default) for field in dataclasses.fields(options)}


def test_the_addresses_are_those_of_the_page() -> None:
    [included] = module_of("telemetry", "urls.py")["urlpatterns"]
    assert isinstance(included, URLResolver)
    addresses = [f"{included.pattern}{view.pattern}" for view in included.url_patterns if isinstance(view, URLPattern)]
    assert addresses == ["convmemory/metrics/", "convmemory/health/", "convmemory/health/workers/"]
    assert [row[0] for row in rows("Health")] == addresses[1:]
    [scraped] = yaml.safe_load(re.search(r"```yaml\n(.*?)```", PAGE, re.DOTALL)[1])["scrape_configs"]  # type: ignore[index]
    assert scraped["metrics_path"] == f"/{addresses[0]}"


@pytest.mark.django_db
def test_an_observer_logs_each_fold(caplog: pytest.LogCaptureFixture) -> None:
    observer = module_of("telemetry", "folds.py")["FoldLog"]()
    observers.add(observer)
    try:
        memory = build(ScriptedChatModel(["fine"]))
        talk(memory, 10)
        with caplog.at_level(logging.INFO, "folds"):
            memory.compact("s")
    finally:
        observers.remove(observer)
    assert [record.message.split(": ")[1][:9] for record in caplog.records if record.name == "folds"] == ["published"]


@pytest.mark.django_db
def test_the_page_lists_every_metric_of_opentelemetry_with_its_kind() -> None:
    usage = Usage(prompt_tokens=9, completion_tokens=1, cached_tokens=3)
    with reporting_to_memory() as reported:
        memory = build(ScriptedChatModel([ChatResponse(ChatMessage.ai("fine"), usage=usage)]))
        talk(memory, 10)
        memory.load("s", max_tokens=1)
        memory.compact("s")
        kinds = {
            name: {"Histogram": "histogram", "Sum": "counter", "Gauge": "gauge"}[type(metric.data).__name__]
            for name, metric in reported.metrics().items()
        }
    assert {row[0]: row[1] for row in rows("The metrics")} == kinds


def test_the_page_lists_every_metric_of_prometheus() -> None:
    listed = [row[0] for row in rows("Prometheus") if row[0].startswith("convmemory_")]
    assert [name.partition("{")[0] for name in listed] == METRICS


def test_the_dashboard_shows_every_metric_and_no_other() -> None:
    dashboard = json.loads(DASHBOARD)
    expressions = [target["expr"] for panel in dashboard["panels"] for target in panel["targets"]]
    assert names_in("\n".join(expressions)) == set(METRICS)
    assert {label for _, label in labels_in("\n".join(expressions))} == {"alias"}
    assert len({panel["id"] for panel in dashboard["panels"]}) == len(dashboard["panels"])
    [alias] = [variable for variable in dashboard["templating"]["list"] if variable["name"] == "alias"]
    assert names_in(alias["query"]["query"]) <= set(METRICS)


def test_the_alerts_ask_for_metrics_and_labels_that_are_there() -> None:
    assert RULES is not None
    [group] = yaml.safe_load(RULES[1])["groups"]
    expressions = "\n".join(rule["expr"] for rule in group["rules"])
    assert names_in(expressions) <= set(METRICS)
    known = {"paused": {"alias", "reason"}, "recent_calls": {"alias", "outcome"}}
    for name, label in labels_in(expressions):
        assert label in known[name.removeprefix("convmemory_")], (name, label)
    assert all(rule["annotations"]["summary"] for rule in group["rules"])
    assert len({rule["alert"] for rule in group["rules"]}) == len(group["rules"])
