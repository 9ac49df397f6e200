"""Checks every invariant of the stored rows, reports what is wrong and where, and repairs counts and the index."""

from __future__ import annotations

import json
import time
from collections import Counter
from collections.abc import Iterator, Sequence
from typing import Any

from django.core.management.base import BaseCommand, CommandError, CommandParser

from django_convmemory import models
from django_convmemory.maintenance import integrity
from django_convmemory.maintenance.integrity import Finding
from django_convmemory.management import choices
from django_convmemory.management.choices import counted, printable
from django_convmemory.memory import memories

_ADVICE = (
    "Restore damaged rows from a backup: messages cannot be made again. If only a summary is damaged, call rebuild() "
    "to make a new one."
)
# In seconds.
_SAYS_EVERY = 10.0
_REPAIRABLE = "Run the command with the options that it names for them."


class Command(BaseCommand):
    """``manage.py convmemory_check``: reads every row. Its memory use does not grow with the rows.

    The command can run while the site is busy. Without ``--recount`` and ``--reindex`` it changes nothing and holds no
    locks, unless a session changes each time that it is checked. Every ten seconds it says on the standard error how
    far it is, and with which ``--after`` another run continues. After a kill, another run skips what is repaired.

    Exits with 0 if nothing is wrong or everything was repaired, with 1 if something is wrong or the check was
    interrupted, and with 2 if the command line is invalid.
    """

    help = (
        "Check the stored rows of all sessions for damage. --recount and --reindex repair what can be computed again. "
        "Exits with 1 if any damage is left."
    )

    def add_arguments(self, parser: CommandParser) -> None:
        """Define the options."""
        choices.add_aliases(parser)
        choices.add_database(parser)
        parser.add_argument("--json", action="store_true", help="Print each finding as a JSON object on its own line.")
        parser.add_argument(
            "--recount",
            action="store_true",
            help="Count tokens and messages again in sessions that another token counter counted, and where the counts "
            "are wrong. A session with other damage is left as it is.",
        )
        parser.add_argument(
            "--reindex",
            action="store_true",
            help="Index the messages that are not indexed for search, and rebuild an index that is damaged or that "
            "another version of this app has made.",
        )
        parser.add_argument(
            "--after",
            type=int,
            default=0,
            metavar="ID",
            help="Check only sessions with a larger id: where an interrupted check continues.",
        )

    def handle(self, *args: Any, **options: Any) -> None:
        """Check the sessions, and print the findings."""
        self._lasting = False  # Whether there is damage that no option repairs.
        using = choices.database(options)
        sessions = choices.sessions(options, using)
        counts: Counter[str] = Counter()
        repaired: Counter[str] = Counter()
        checked, number, said_at = options["after"], 0, time.monotonic()
        try:
            for session_id in sessions.ids(after=checked):
                findings = integrity.check_session(session_id, using=using)
                done = list(_repair(session_id, findings, using, options))
                if done and findings:
                    findings = integrity.check_session(session_id, using=using)
                counts += self._print(findings, using, options)
                repaired.update(done)
                checked, number = session_id, number + 1
                if time.monotonic() - said_at > _SAYS_EVERY and options["verbosity"]:
                    said_at = time.monotonic()
                    left = models.Session.objects.using(using).filter(pk__gt=checked).count()
                    self.stderr.write(
                        f"Checked {counted(number, 'session')}, {left} {'is' if left == 1 else 'are'} left. "
                        f"To continue from here: --after {checked}."
                    )
            counts += self._print(list(integrity.orphans(using)), using, options)
        except KeyboardInterrupt:
            raise CommandError(
                f"Interrupted, with {counted(counts.total(), 'finding')} so far. To continue, run the command with "
                f"--after {checked}."
            ) from None
        if not options["json"] and options["verbosity"]:
            results = [f"Checked {counted(number, 'session')}."]
            results += [f"{counted(count, 'session')} {verb}." for verb, count in repaired.items()]
            self.stdout.write(" ".join(results if counts else [*results, "Nothing is wrong."]))
            if failing := sessions.in_state(models.SessionState.FAILING).count():
                self.stdout.write(f"{counted(failing, 'failing session')}: the overview in the admin says why.")
        if counts:
            kinds = ", ".join(f"{code} ({count})" for code, count in sorted(counts.items()))
            advice = _ADVICE if self._lasting else _REPAIRABLE
            raise CommandError(f"{counted(counts.total(), 'finding')}: {kinds}. {advice}")

    def _print(self, findings: Sequence[Finding], using: str, options: dict[str, Any]) -> Counter[str]:
        """Print the findings of one session. Return how many there are of each kind."""
        # Nobody knows the counter of a session whose alias was removed from the settings.
        known = models.Session.objects.using(using).filter(alias__in=list(memories))
        can_repair = bool(findings) and known.filter(pk=findings[0].session_id).exists()
        for finding in findings:
            repair = integrity.repair_of(finding, findings) if can_repair else ""
            self._lasting = self._lasting or not repair
            if options["json"]:
                self.stdout.write(json.dumps({**finding._asdict(), "repair": repair}))
            else:
                name = f" ({printable(finding.name)})" if finding.name else ""
                repairs = f" ({repair} repairs it)" if repair else ""
                self.stdout.write(f"session {finding.session_id}{name}: {finding.code}: {finding.message}{repairs}")
        return Counter(finding.code for finding in findings)


def _repair(session_id: int, findings: Sequence[Finding], using: str, options: dict[str, Any]) -> Iterator[str]:
    """Repair what the options allow in a session with these findings, and yield what was done.

    A session with damage that cannot be repaired stays as it is.
    """
    if not (options["recount"] or options["reindex"]):
        return
    repairs = {integrity.repair_of(finding, findings) for finding in findings}
    columns = ("alias", "counter", "last_position", "indexed_position")
    row = models.Session.objects.using(using).filter(pk=session_id).values_list(*columns).first()
    if row is None or row[0] not in memories or "" in repairs:
        return
    memory, (counter, last_position, indexed_position) = memories[row[0]], row[1:]
    wrong_index = "--reindex" in repairs
    wrong_counts = "--recount" in repairs or counter != memory.counter_name
    if options["recount"] and wrong_counts and integrity.recount(memory, session_id, using=using):
        yield "recounted"
    if options["reindex"] and (wrong_index or (memory.options.index and indexed_position < last_position)):
        integrity.reindex(memory, session_id, using=using, damaged=wrong_index)
        yield "reindexed"
