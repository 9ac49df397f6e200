-- append, rows: a message of the user
-- append, rows: a message of the assistant
-- append, rows: a limit of messages
-- append, rows: limits of tokens and of messages
-- append, rows: no limit
-- append, rows: a limit of messages that are not indexed
-- append, rows: a reply, and a limit of messages that are not indexed
-- append, rows: all limits
-- append, rows: a session that is given as a row
-- append, rows: a pinned message
INSERT INTO convmemory_message (session_id, role, kind, content, tokens, tokens_through, position, public_id,
    created_at)
VALUES (%(session_id)s, %(role)s, %(kind)s, %(content)s, %(tokens)s, %(tokens_through)s, %(position)s,
    %(public_id)s, UTC_TIMESTAMP(6));

-- append, rows: several messages
-- append, rows: two pinned messages
INSERT INTO convmemory_message (session_id, role, kind, content, wire, metadata, format, item, `usage`,
    tokens, tokens_through, position, answers, reply_to, cut_off, public_id, created_at)
VALUES (%s, %s, %s, %s, %s, %s, %s, %s, %s, %s, %s, %s, %s, %s, %s, %s, COALESCE(%s, UTC_TIMESTAMP(6))), (%s,
    %s, %s, %s, %s, %s, %s, %s, %s, %s, %s, %s, %s, %s, %s, %s, COALESCE(%s, UTC_TIMESTAMP(6))), (%s, %s, %s,
    %s, %s, %s, %s, %s, %s, %s, %s, %s, %s, %s, %s, %s, COALESCE(%s, UTC_TIMESTAMP(6)));

-- append, rows: every column, and an idempotency key
INSERT INTO convmemory_message (session_id, role, kind, content, wire, metadata, `usage`, tokens,
    tokens_through, position, public_id, created_at)
VALUES (%(session_id)s, %(role)s, %(kind)s, %(content)s, %(wire)s, %(metadata)s, %(usage)s, %(tokens)s,
    %(tokens_through)s, %(position)s, %(public_id)s, %(created_at)s);

-- append, rows: several messages, an idempotency key
-- append, rows: tool calls with their result
-- append, rows: two tool results
-- append, rows: a tool result, and a message of the user
INSERT INTO convmemory_message (session_id, role, kind, content, wire, metadata, format, item, `usage`,
    tokens, tokens_through, position, answers, reply_to, cut_off, public_id, created_at)
VALUES (%s, %s, %s, %s, %s, %s, %s, %s, %s, %s, %s, %s, %s, %s, %s, %s, COALESCE(%s, UTC_TIMESTAMP(6))), (%s,
    %s, %s, %s, %s, %s, %s, %s, %s, %s, %s, %s, %s, %s, %s, %s, COALESCE(%s, UTC_TIMESTAMP(6)));

-- append, rows: tool calls
INSERT INTO convmemory_message (session_id, role, kind, wire, tokens, tokens_through, position, public_id,
    created_at)
VALUES (%(session_id)s, %(role)s, %(kind)s, %(wire)s, %(tokens)s, %(tokens_through)s, %(position)s,
    %(public_id)s, UTC_TIMESTAMP(6));

-- append, rows: a tool result
INSERT INTO convmemory_message (session_id, role, kind, content, wire, tokens, tokens_through, position,
    answers, public_id, created_at)
VALUES (%(session_id)s, %(role)s, %(kind)s, %(content)s, %(wire)s, %(tokens)s, %(tokens_through)s,
    %(position)s, %(answers)s, %(public_id)s, UTC_TIMESTAMP(6));

-- append, an idempotency key
INSERT INTO convmemory_usedkey (session_id, key_hash, first_position, size, content)
VALUES (%(session_id)s, %(key_hash)s, %(first_position)s, %(size)s, %(content)s);

-- load: everything
SELECT m.position, m.role, m.kind, m.content, m.wire, m.metadata, m.tokens, m.answers, m.redacted_at IS NOT
    NULL
FROM convmemory_message m
WHERE m.session_id = (
    SELECT s.id
    FROM convmemory_session s
    WHERE s.name_hash = %(name_hash)s)
AND m.position >= (
    SELECT 1
    FROM convmemory_session s
    WHERE s.name_hash = %(name_hash)s)
UNION ALL
SELECT CAST(NULL AS SIGNED), NULL, NULL, NULL, JSON_ARRAY(s.id, s.epoch, s.revision, s.due_since IS NOT NULL,
    s.last_position, s.unpinned_count, s.unpinned_tokens, s.settled_tokens, s.newest_position, s.pinned,
    s.call_position, s.exchange_calls, s.open_calls, s.covered_position, s.covered_count, s.covered_tokens), (
    SELECT JSON_ARRAY(v.version, v.first_position, v.last_position, v.text, v.tokens)
    FROM convmemory_summary v
    WHERE v.session_id = s.id
    AND v.version = s.current_version), CAST(NULL AS SIGNED), CAST(NULL AS SIGNED), NULL
FROM convmemory_session s
WHERE s.name_hash = %(name_hash)s;

-- load: the last messages
SELECT m.position, m.role, m.kind, m.content, m.wire, m.metadata, m.tokens, m.answers, m.redacted_at IS NOT
    NULL
FROM convmemory_message m
WHERE m.session_id = (
    SELECT s.id
    FROM convmemory_session s
    WHERE s.name_hash = %(name_hash)s)
AND m.position >= (
    SELECT GREATEST(1, LEAST(last_position + 1 - pinned_count - %(bound)s, newest_position))
    FROM convmemory_session s
    WHERE s.name_hash = %(name_hash)s)
UNION ALL
SELECT CAST(NULL AS SIGNED), NULL, NULL, NULL, JSON_ARRAY(s.id, s.epoch, s.revision, s.due_since IS NOT NULL,
    s.last_position, s.unpinned_count, s.unpinned_tokens, s.settled_tokens, s.newest_position, s.pinned,
    s.call_position, s.exchange_calls, s.open_calls, s.covered_position, s.covered_count, s.covered_tokens), (
    SELECT JSON_ARRAY(v.version, v.first_position, v.last_position, v.text, v.tokens)
    FROM convmemory_summary v
    WHERE v.session_id = s.id
    AND v.version = s.current_version), CAST(NULL AS SIGNED), CAST(NULL AS SIGNED), NULL
FROM convmemory_session s
WHERE s.name_hash = %(name_hash)s;

-- load: the last tokens
SELECT m.position, m.role, m.kind, m.content, m.wire, m.metadata, m.tokens, m.answers, m.redacted_at IS NOT
    NULL
FROM convmemory_message m
WHERE m.session_id = (
    SELECT s.id
    FROM convmemory_session s
    WHERE s.name_hash = %(name_hash)s)
AND m.tokens_through > (
    SELECT GREATEST(0, LEAST(unpinned_tokens - %(bound)s, settled_tokens))
    FROM convmemory_session s
    WHERE s.name_hash = %(name_hash)s)
UNION ALL
SELECT CAST(NULL AS SIGNED), NULL, NULL, NULL, JSON_ARRAY(s.id, s.epoch, s.revision, s.due_since IS NOT NULL,
    s.last_position, s.unpinned_count, s.unpinned_tokens, s.settled_tokens, s.newest_position, s.pinned,
    s.call_position, s.exchange_calls, s.open_calls, s.covered_position, s.covered_count, s.covered_tokens), (
    SELECT JSON_ARRAY(v.version, v.first_position, v.last_position, v.text, v.tokens)
    FROM convmemory_summary v
    WHERE v.session_id = s.id
    AND v.version = s.current_version), CAST(NULL AS SIGNED), CAST(NULL AS SIGNED), NULL
FROM convmemory_session s
WHERE s.name_hash = %(name_hash)s;

-- load: the summary, and what it does not cover
SELECT m.position, m.role, m.kind, m.content, m.wire, m.metadata, m.tokens, m.answers, m.redacted_at IS NOT
    NULL
FROM convmemory_message m
WHERE m.session_id = (
    SELECT s.id
    FROM convmemory_session s
    WHERE s.name_hash = %(name_hash)s)
AND m.position >= (
    SELECT covered_position + 1
    FROM convmemory_session s
    WHERE s.name_hash = %(name_hash)s)
UNION ALL
SELECT CAST(NULL AS SIGNED), NULL, NULL, NULL, JSON_ARRAY(s.id, s.epoch, s.revision, s.due_since IS NOT NULL,
    s.last_position, s.unpinned_count, s.unpinned_tokens, s.settled_tokens, s.newest_position, s.pinned,
    s.call_position, s.exchange_calls, s.open_calls, s.covered_position, s.covered_count, s.covered_tokens), (
    SELECT JSON_ARRAY(v.version, v.first_position, v.last_position, v.text, v.tokens)
    FROM convmemory_summary v
    WHERE v.session_id = s.id
    AND v.version = s.current_version), CAST(NULL AS SIGNED), CAST(NULL AS SIGNED), NULL
FROM convmemory_session s
WHERE s.name_hash = %(name_hash)s;

-- load: the summary, and the last messages
SELECT m.position, m.role, m.kind, m.content, m.wire, m.metadata, m.tokens, m.answers, m.redacted_at IS NOT
    NULL
FROM convmemory_message m
WHERE m.session_id = (
    SELECT s.id
    FROM convmemory_session s
    WHERE s.name_hash = %(name_hash)s)
AND m.position >= (
    SELECT GREATEST(covered_position + 1, LEAST(last_position + 1 - pinned_count - %(bound)s,
        newest_position))
    FROM convmemory_session s
    WHERE s.name_hash = %(name_hash)s)
UNION ALL
SELECT CAST(NULL AS SIGNED), NULL, NULL, NULL, JSON_ARRAY(s.id, s.epoch, s.revision, s.due_since IS NOT NULL,
    s.last_position, s.unpinned_count, s.unpinned_tokens, s.settled_tokens, s.newest_position, s.pinned,
    s.call_position, s.exchange_calls, s.open_calls, s.covered_position, s.covered_count, s.covered_tokens), (
    SELECT JSON_ARRAY(v.version, v.first_position, v.last_position, v.text, v.tokens)
    FROM convmemory_summary v
    WHERE v.session_id = s.id
    AND v.version = s.current_version), CAST(NULL AS SIGNED), CAST(NULL AS SIGNED), NULL
FROM convmemory_session s
WHERE s.name_hash = %(name_hash)s;

-- load: the summary, and the last tokens
SELECT m.position, m.role, m.kind, m.content, m.wire, m.metadata, m.tokens, m.answers, m.redacted_at IS NOT
    NULL
FROM convmemory_message m
WHERE m.session_id = (
    SELECT s.id
    FROM convmemory_session s
    WHERE s.name_hash = %(name_hash)s)
AND m.tokens_through > (
    SELECT GREATEST(covered_tokens, LEAST(unpinned_tokens - %(bound)s, settled_tokens))
    FROM convmemory_session s
    WHERE s.name_hash = %(name_hash)s)
UNION ALL
SELECT CAST(NULL AS SIGNED), NULL, NULL, NULL, JSON_ARRAY(s.id, s.epoch, s.revision, s.due_since IS NOT NULL,
    s.last_position, s.unpinned_count, s.unpinned_tokens, s.settled_tokens, s.newest_position, s.pinned,
    s.call_position, s.exchange_calls, s.open_calls, s.covered_position, s.covered_count, s.covered_tokens), (
    SELECT JSON_ARRAY(v.version, v.first_position, v.last_position, v.text, v.tokens)
    FROM convmemory_summary v
    WHERE v.session_id = s.id
    AND v.version = s.current_version), CAST(NULL AS SIGNED), CAST(NULL AS SIGNED), NULL
FROM convmemory_session s
WHERE s.name_hash = %(name_hash)s;

-- load, pinned messages
SELECT s.epoch, m.position, m.role, m.kind, m.content, m.wire, m.metadata, m.tokens, m.answers, m.redacted_at
    IS NOT NULL
FROM convmemory_session s
LEFT JOIN convmemory_message m ON m.session_id = s.id
AND m.position IN (%s, %s)
WHERE s.id = %s;

-- fork, messages
INSERT INTO convmemory_message (session_id, role, kind, content, wire, metadata, format, item, `usage`,
    tokens, tokens_through, position, answers, reply_to, cut_off, public_id, created_at, redacted_at)
SELECT %s, role, kind, content, wire, metadata, format, item, `usage`, tokens, tokens_through, position,
    answers, reply_to, cut_off, public_id, created_at, redacted_at
FROM convmemory_message
WHERE session_id = %s
AND position <= %s;

-- fork, summaries
INSERT INTO convmemory_summary (session_id, version, parent_version, first_position, last_position,
    covered_count, covered_tokens, text, tokens, model, shortened, fallback, stand_in, carried, cut, building,
    part_end, prompt_hash, identifiers, model_length, created_at)
SELECT %s, version, parent_version, first_position, last_position, covered_count, covered_tokens, text,
    tokens, model, shortened, fallback, stand_in, carried, cut, building, part_end, prompt_hash, identifiers,
    model_length, created_at
FROM convmemory_summary
WHERE session_id = %s
AND last_position <= %s
AND invalidated_at IS NULL
AND building = %s;
