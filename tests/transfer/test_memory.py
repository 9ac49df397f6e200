"""The memory that import and export take does not grow with the sessions."""

from __future__ import annotations

import functools
import json
import pathlib
import tracemalloc

import pytest

from django_convmemory import models
from django_convmemory.memory import memories
from tests.transfer.records import call, human, record


def peak(command: functools.partial[str]) -> float:
    """Run a command and return its peak memory, in MB."""
    tracemalloc.start()
    try:
        command()
        return tracemalloc.get_traced_memory()[1] / 1e6
    finally:
        tracemalloc.stop()


@pytest.mark.slow
@pytest.mark.only_on("sqlite")
@pytest.mark.django_db
def test_memory_does_not_grow_with_the_number_of_sessions(tmp_path: pathlib.Path) -> None:
    path, out = tmp_path / "records", tmp_path / "out"
    path.write_text(json.dumps(record("first")))
    call("convmemory_import", path)  # imports modules, as the next command does
    call("convmemory_export", "--output", out)
    texts = [json.dumps(record(str(number), *[human("It is a long story. " * 5)] * 100)) for number in range(200)]
    path.write_text("\n".join(texts))

    imported = peak(functools.partial(call, "convmemory_import", path))
    written = peak(functools.partial(call, "convmemory_export", "--output", out))

    assert models.Message.objects.count() == 20_001
    assert path.stat().st_size > 2_500_000
    assert imported < 1.5
    assert written < 1.5


@pytest.mark.only_on("sqlite")
@pytest.mark.django_db
def test_memory_does_not_grow_with_a_session_that_is_exported(tmp_path: pathlib.Path) -> None:
    memory, out = memories["default"], tmp_path / "out"
    for _ in range(20):
        memory.append("a", *[human("It is a long story. " * 20)] * 1000)

    written = peak(functools.partial(call, "convmemory_export", "--output", out))

    assert out.stat().st_size > 8_000_000
    assert written < 4
