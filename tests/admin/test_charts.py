"""The columns of a chart of the admin."""

from __future__ import annotations

from django_convmemory.admin import charts


def test_columns_are_stacked_and_the_smallest_value_can_be_seen() -> None:
    chart = charts.columns(["in", "out"], [[0, 0], [60, 40], [100, 0.001]])
    assert chart.maximum == 100.001
    heights = [(box.name, box.y + box.height, box.height) for box in chart.boxes]
    assert heights == [("in", 120, 72), ("out", 48, 48), ("in", 120, 120), ("out", 2, 2)]
    assert charts.columns(["cost"], [[0], [0]]).boxes == []
