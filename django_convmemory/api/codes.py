"""The codes of errors. They do not change between releases.

The authentication and permission classes of a site may have codes of their own.
"""

from __future__ import annotations

from typing import Literal

# What a problem document has as its ``code``. docs/api.md says what a client does about each.
ProblemCode = Literal[
    "authentication_failed",
    "body_too_large",
    "broker_unavailable",
    "csrf_failed",
    "database_unavailable",
    "idempotency_conflict",
    "invalid",
    "invalid_argument",
    "invalid_etag",
    "invalid_idempotency_key",
    "invalid_message",
    "invalid_session",
    "length_required",
    "message_redacted",
    "message_too_large",
    "method_not_allowed",
    "not_acceptable",
    "not_authenticated",
    "not_found",
    "nothing_to_do",
    "outcome_unknown",
    "parse_error",
    "permission_denied",
    "precondition_required",
    "role_not_allowed",
    "session_contended",
    "session_exists",
    "stale_revision",
    "throttled",
    "too_many_pinned",
    "too_many_streams",
    "tool_result_refused",
    "unknown_alias",
    "unknown_message",
    "unknown_version",
    "unsupported_media_type",
]

# What an entry of ``errors`` has as its ``code``: the kind of one wrong value.
ValueCode = Literal[
    "address_not_allowed",
    "blank",
    "content_part_not_allowed",
    "empty",
    "empty_content",
    "invalid",
    "invalid_choice",
    "invalid_message",
    "invalid_name",
    "kind_not_allowed",
    "max_length",
    "max_value",
    "message_too_large",
    "min_length",
    "min_value",
    "not_a_list",
    "not_a_pdf",
    "not_an_object",
    "not_base64",
    "null",
    "null_characters_not_allowed",
    "out_of_range",
    "overflow",
    "required",
    "too_deep",
    "too_large",
    "too_many_messages",
    "unknown_alias",
    "unknown_field",
    "unstorable",
]
