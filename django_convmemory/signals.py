"""Signals, sent after the commit of what they report. An exception of a receiver is logged and goes no further."""

from django.dispatch import Signal

# Messages were appended. Arguments: memory, session (a handle), session_id, receipt.
messages_appended = Signal()

# A summary was published. Arguments: memory, session (a handle), session_id, version.
summary_published = Signal()

# A compaction run failed and will be tried again. Arguments: memory, session (a handle), session_id, error.
compaction_failed = Signal()
