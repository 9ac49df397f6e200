"""Signals. All but the last are sent after the commit of what they report.

An exception of their receivers is logged and goes no further.
"""

from django.dispatch import Signal

# Messages were appended. Arguments: memory, session (a handle), session_id, receipt.
messages_appended = Signal()

# A summary was published. Arguments: memory, session (a handle), session_id, version.
summary_published = Signal()

# A compaction run failed and will be tried again. Arguments: memory, session (a handle), session_id, error.
compaction_failed = Signal()

# Messages were removed, redacted, or copied to a fork: what a site derives from their content has to follow. It is sent
# inside the transaction, after the change, while the session's row is locked. An exception of a receiver undoes the
# change. A deletion of the session comes as a removal of all messages, just before it.
# Arguments: using (the database), session_id, first and last (positions; a last of None: through the end), and
# copied_from (the id of the session whose messages were copied, or None: they are gone).
content_changed = Signal()
