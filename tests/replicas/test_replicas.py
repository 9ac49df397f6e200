"""A site with a streaming replica of PostgreSQL shows no lag, and goes on without the replica."""

from __future__ import annotations

from tests.replicas.conftest import Replicated
from tests.replicas.standby import Standby, stop_replay

SITE = """
from django.db import connections
from django.test.utils import CaptureQueriesContext
from django_convmemory.memory import memories
from django_convmemory.models import Session
from django_convmemory.stores import replicas
from tests.replicas import site

site.prepare()
"""

CHANGE = (
    SITE
    + """
pages = site.client()
main, other = (memories["default"].session(key, owner=site.ann()) for key in ("main", "other"))
created = pages.post("/api/sessions/", {"key": "new"}, content_type="application/json")
shown = pages.get(created["Location"])
body = {"messages": [{"role": "user", "content": "Castle number 99 of new."}]}
stored = pages.post(created["Location"] + "messages/", body, content_type="application/json")
main.redact(2)
main.update_message(3, metadata={"liked": True})
main.append({"role": "assistant", "content": "Castle number 100 of main."})
other.truncate(after=5)
other.append({"role": "user", "content": "Castle number 101 of other."})
done = pages.post(
    "/admin/convmemory/session/",
    {"action": "compact", "_selected_action": [Session.objects.using("default").get(key="main").pk]},
)
statuses = [created.status_code, shown.status_code, stored.status_code, done.status_code]
"""
)

LAGGING = (
    CHANGE
    + """
seen = site.walk(pages)
with site.without_replica():
    expected = site.walk(pages)
found = memories["default"].search("castle", owner=site.ann(), limit=50)
secret = [hit.position for hit in memories["default"].search(site.SECRET, session=main)]
behind = [session.key for session in Session.objects.all()]
site.report([statuses, site.differences(seen, expected), len(seen), len(found), found.complete, secret, sorted(behind)])
"""
)


def test_nothing_that_a_site_shows_lags(replicated: Replicated) -> None:
    stop_replay(replicated.replica)

    statuses, different, places, found, complete, secret, behind = replicated.site.python(LAGGING)

    assert statuses == [201, 200, 201, 302]
    assert different == []
    assert places > 80
    # Of "main" 12 messages without the redacted one, and a new one. Of "other" five and a new one. And of "new" one.
    assert (found, complete) == (12 + 6 + 1, True)
    assert 2 not in secret
    # The site's own queries read the replica, which has neither of the changes.
    assert behind == ["main", "other"]


MOVED = (
    SITE
    + """
pages = site.client()
memory = memories["default"]
session = memory.session("main", owner=site.ann())
row = Session.objects.using("default").get(key="main")
address = f"/api/sessions/{row.public_id}/"
with site.without_replica():
    expected = site.walk(pages)
works = {
    "history": session.history,
    "search": lambda: session.search("castle"),
    "search of many": lambda: memory.search("castle", owner=site.ann()),
    "search of a query": lambda: memory.search("castle", sessions=Session.objects.filter(owner=site.ann())),
    "messages": lambda: pages.get(address + "messages/"),
    "export": lambda: b"".join(pages.get(address + "export/")),
    "admin's export": lambda: b"".join(pages.get(f"/admin/convmemory/session/{row.pk}/export/")),
    "load": lambda: session.load(recall="castle"),
    "append": lambda: session.append({"role": "user", "content": "hello"}),
    "append again": lambda: site.in_transaction(lambda: session.append({"role": "user", "content": "hello"})),
    "changed in a transaction": lambda: site.in_transaction(
        lambda: [session.append({"role": "user", "content": "bye"}), session.history(limit=1)][1]
    ),
    "session": lambda: pages.get(address),
}
different = site.differences(site.walk(pages), expected)
site.report([different, {name: site.tables(work) for name, work in works.items()}])
"""
)


def test_a_replica_that_has_caught_up_answers_the_reads_of_conversations(replicated: Replicated) -> None:
    different, read = replicated.site.python(MOVED)

    assert different == []
    for name in ("history", "messages", "export", "admin's export"):
        assert "message" in read[name]["replica"], (name, read)
        assert "message" not in read[name]["default"], (name, read)
    for name in ("search", "search of many", "search of a query"):
        assert "segment" in read[name]["replica"], (name, read)
        assert "segment" not in read[name]["default"], (name, read)
    for name in ("load", "append", "append again", "session"):
        assert read[name]["replica"] == [], (name, read)
    # The transaction's own message is in no other database.
    assert "message" in read["changed in a transaction"]["default"]
    assert read["changed in a transaction"]["replica"] == ["session"]


DOWN = (
    SITE
    + """
pages = site.client()
memory = memories["default"]
with site.without_replica():
    expected = site.walk(pages)
seen = site.walk(pages)
paused = list(replicas._paused_until)
session = memory.session("main", owner=site.ann())
with CaptureQueriesContext(connections["default"]) as sent:
    session.history()
site.report([site.differences(seen, expected), paused, connections["replica"].connection is None, len(sent)])
"""
)

BACK = (
    SITE
    + """
session = memories["default"].session("main", owner=site.ann())
shown = session.history()
connections["replica"].cursor().execute("SELECT 1")
ended = connections["replica"].connection
ended.close()
replicas.PAUSE = 0.0
without = session.history()
read = site.tables(session.history)
site.report([shown == without == session.history(), read["replica"]])
"""
)


def test_without_the_replica_the_site_goes_on(replicated: Replicated) -> None:
    replicated.replica.stop()
    try:
        different, paused, unconnected, sent = replicated.site.python(DOWN)
    finally:
        replicated.replica.start()

    # The replica is left alone for a while, and no revision is asked for.
    assert (different, paused, unconnected, sent) == ([], ["replica"], True, 1)
    # A connection that has broken is replaced after the pause.
    assert replicated.site.python(BACK) == [True, ["message", "session"]]


REFUSED = (
    SITE
    + """
def fail(using):
    connections[using].cursor().execute("TABLE of_the_next_version")

session = memories["default"].session("main", owner=site.ann())
rows = Session.objects.iterator(chunk_size=1)
keys = [next(rows).key]
answered = replicas.read_unchecked("default", lambda using: fail(using) if using == "replica" else using)
keys += [row.key for row in rows]
site.report([sorted(keys), answered, list(replicas._paused_until), len(session.history())])
"""
)


def test_a_statement_that_the_replica_refuses_ends_nothing_that_the_site_reads(replicated: Replicated) -> None:
    assert replicated.site.python(REFUSED) == [["main", "other"], "default", ["replica"], 12]


ON_REQUEST = (
    SITE
    + """
from django_convmemory.memory import ConversationBufferMemory
from django_convmemory.stores.orm import ORMStore

archive = ConversationBufferMemory(ORMStore(using="replica")).session("main", owner=site.ann())
everywhere = memories["default"].session("main", owner=site.ann())
theirs = Session.objects.filter(owner=site.ann())
with site.without_replica():
    before = {command: site.run(command) for command in ("export", "evaluate", "check")}
everywhere.append({"role": "user", "content": "A cathedral."})
site.report([
    site.differences({command: site.run(command, "--database", "replica") for command in before}, before),
    site.run("stats", "--database", "replica") == site.run("stats"),
    [len(session.history()) for session in (archive, everywhere)],
    [len(session.load(max_tokens=9999)) for session in (archive, everywhere)],
    [
        [hit.position for hit in memories["default"].search("cathedral", sessions=rows)][:1]
        for rows in (theirs.using("replica"), theirs)
    ],
])
"""
)


def test_the_replica_is_read_without_a_check_on_request(replicated: Replicated) -> None:
    stop_replay(replicated.replica)

    different, same_stats, histories, contexts, hits = replicated.site.python(ON_REQUEST)

    assert (different, same_stats, histories, hits) == ([], False, [12, 13], [[], [13]])
    assert contexts[0] == 12


WRITES = (
    SITE
    + """
from django.core.management import CommandError

refused = {}
for command, *arguments in (
    ["check", "--repair"],
    ["erase", "--owner", "ann", "--no-input"],
    ["import", "/dev/null"],
    ["index"],
    ["prune", "--inactive-for", "1s"],
    ["recount", "--all"],
):
    try:
        site.run(command, *arguments, "--database", "replica")
    except CommandError as error:
        refused[command] = (str(error), error.returncode)
dry_run = site.run("prune", "--inactive-for", "1s", "--dry-run", "--database", "replica")
site.report([refused, "would be deleted" in dry_run])
"""
)


def test_a_command_that_writes_says_that_the_replica_is_read_only(replicated: Replicated) -> None:
    refused, dry_run = replicated.site.python(WRITES)

    text = "The database 'replica' is read-only, as a replica is. Give --database with the primary's alias."
    assert refused == {command: [text, 2] for command in ("check", "erase", "import", "index", "prune", "recount")}
    assert dry_run


PRIMARY_DOWN = (
    SITE
    + """
from django.db import OperationalError

session = memories["default"].session("main", visitor="a visitor")
try:
    session.history()
    error = ""
except OperationalError as raised:
    error = type(raised).__name__
site.report([error, Session.objects.count()])
"""
)

PROMOTED = (
    SITE
    + """
session = memories["default"].session("main", owner=site.ann())
before = len(session.history())
session.append({"role": "user", "content": "Castle number 200 of main."})
site.report([before, len(session.history()), session.search("200")[0].position])
"""
)


def test_a_promoted_replica_takes_the_place_of_the_primary(replicated: Replicated) -> None:
    replicated.primary.stop()
    try:
        # Only the site's own queries go on: the database that is written decides what may be shown.
        assert replicated.site.python(PRIMARY_DOWN) == ["OperationalError", 2]
    finally:
        replicated.primary.start()
    folder = replicated.folder / "promoted"
    folder.mkdir()
    with Standby(folder, replicated.primary) as other:
        other.promote()
        settings = replicated.site.folder / "mysite" / "settings.py"
        text = settings.read_text()
        try:
            settings.write_text(text + f"DATABASES = {{alias: {other.database()!r} for alias in DATABASES}}\n")
            assert replicated.site.python(PROMOTED) == [12, 13, 13]
        finally:
            settings.write_text(text)
