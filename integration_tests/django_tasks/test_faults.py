"""Some faults of ``make release-chaos-tasks``: whole sites whose work is sent by Django's own tasks."""

from __future__ import annotations

import subprocess
import sys

import pytest

from tests import processes
from tests.chaos.site import ABSENT, DATABASE_TASKS
from tests.servers import REQUIRED

FAULTS = ("killed_during_the_call", "whole_worker_killed", "a_task_delivered_five_times", "edited_all_the_time")


@pytest.mark.only_on("postgresql")
def test_no_message_is_lost_and_all_are_folded() -> None:
    command = [sys.executable, "-m", "tests.chaos", "--database", "postgresql", "--broker", DATABASE_TASKS]
    faults = [f"--fault={name}" for name in FAULTS]

    done = subprocess.run([*command, *faults], cwd=processes.ROOT, capture_output=True, text=True, check=False)

    if done.returncode == ABSENT and not REQUIRED:
        pytest.skip(done.stderr)
    assert done.stdout.splitlines()[-1:] == [f"postgresql, {DATABASE_TASKS}: {len(FAULTS)} runs, 0 failed."], done
