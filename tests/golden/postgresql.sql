-- append: a message of the user
WITH advanced AS (
    UPDATE convmemory_session
    SET last_position = last_position + 1,
    unpinned_count = unpinned_count + 1,
    unpinned_tokens = unpinned_tokens + %(added_tokens)s,
    settled_tokens = CASE WHEN open_calls = '' THEN unpinned_tokens ELSE settled_tokens END,
    newest_position = CASE WHEN open_calls = '' THEN last_position + 1 ELSE newest_position END,
    answered_position = call_position,
    counter = CASE WHEN last_position = 0
    OR counter = %(counter)s THEN %(counter)s ELSE '' END,
    revision = revision + 1,
    updated_at = STATEMENT_TIMESTAMP(),
    due_revision = CASE WHEN due_since IS NULL
    AND (unpinned_tokens + %(added_tokens)s - covered_tokens > %(max_tokens)s)
    AND CASE WHEN open_calls = '' THEN unpinned_tokens ELSE settled_tokens END > covered_tokens THEN revision
        + 1 ELSE due_revision END,
    due_since = CASE WHEN due_since IS NULL
    AND (unpinned_tokens + %(added_tokens)s - covered_tokens > %(max_tokens)s)
    AND CASE WHEN open_calls = '' THEN unpinned_tokens ELSE settled_tokens END > covered_tokens THEN
        STATEMENT_TIMESTAMP() ELSE due_since END
    WHERE name_hash = %(name_hash)s
    RETURNING id, last_position, unpinned_tokens, answered_position, due_since IS NOT NULL AS due,
    due_revision = revision AS turned_due), added AS (
    INSERT INTO convmemory_message (session_id, tokens_through, position, created_at, role, kind, content,
        tokens, public_id)
    SELECT id, unpinned_tokens, last_position, STATEMENT_TIMESTAMP(), %(role)s, %(kind)s, %(content)s,
        %(tokens)s, %(public_id)s
    FROM advanced)
SELECT *
FROM advanced;

-- append: a message of the assistant
WITH advanced AS (
    UPDATE convmemory_session
    SET last_position = last_position + 1,
    unpinned_count = unpinned_count + 1,
    unpinned_tokens = unpinned_tokens + %(added_tokens)s,
    settled_tokens = unpinned_tokens,
    newest_position = last_position + 1,
    answered_position = call_position,
    exchange_calls = '',
    open_calls = '',
    call_position = 0,
    counter = CASE WHEN last_position = 0
    OR counter = %(counter)s THEN %(counter)s ELSE '' END,
    revision = revision + 1,
    updated_at = STATEMENT_TIMESTAMP(),
    due_revision = CASE WHEN due_since IS NULL
    AND (unpinned_tokens + %(added_tokens)s - covered_tokens > %(max_tokens)s)
    AND unpinned_tokens > covered_tokens THEN revision + 1 ELSE due_revision END,
    due_since = CASE WHEN due_since IS NULL
    AND (unpinned_tokens + %(added_tokens)s - covered_tokens > %(max_tokens)s)
    AND unpinned_tokens > covered_tokens THEN STATEMENT_TIMESTAMP() ELSE due_since END
    WHERE name_hash = %(name_hash)s
    RETURNING id, last_position, unpinned_tokens, answered_position, due_since IS NOT NULL AS due,
    due_revision = revision AS turned_due), added AS (
    INSERT INTO convmemory_message (session_id, tokens_through, position, created_at, role, kind, content,
        tokens, public_id)
    SELECT id, unpinned_tokens, last_position, STATEMENT_TIMESTAMP(), %(role)s, %(kind)s, %(content)s,
        %(tokens)s, %(public_id)s
    FROM advanced)
SELECT *
FROM advanced;

-- append: several messages
WITH advanced AS (
    UPDATE convmemory_session
    SET last_position = last_position + %(added)s,
    unpinned_count = unpinned_count + %(added_unpinned)s,
    unpinned_tokens = unpinned_tokens + %(added_tokens)s,
    settled_tokens = unpinned_tokens + %(settled)s,
    newest_position = last_position + %(newest)s,
    answered_position = call_position,
    exchange_calls = '',
    open_calls = '',
    call_position = 0,
    counter = CASE WHEN last_position = 0
    OR counter = %(counter)s THEN %(counter)s ELSE '' END,
    revision = revision + 1,
    updated_at = STATEMENT_TIMESTAMP(),
    due_revision = CASE WHEN due_since IS NULL
    AND (unpinned_tokens + %(added_tokens)s - covered_tokens > %(max_tokens)s)
    AND unpinned_tokens + %(settled)s > covered_tokens THEN revision + 1 ELSE due_revision END,
    due_since = CASE WHEN due_since IS NULL
    AND (unpinned_tokens + %(added_tokens)s - covered_tokens > %(max_tokens)s)
    AND unpinned_tokens + %(settled)s > covered_tokens THEN STATEMENT_TIMESTAMP() ELSE due_since END
    WHERE name_hash = %(name_hash)s
    RETURNING id, last_position, unpinned_tokens, answered_position, due_since IS NOT NULL AS due,
    due_revision = revision AS turned_due), added AS (
    INSERT INTO convmemory_message (session_id, role, kind, content, wire, metadata, format, item, usage,
        tokens, tokens_through, position, answers, reply_to, cut_off, public_id, created_at)
    SELECT advanced.id, batch.role, batch.kind, batch.content, batch.wire, batch.metadata, batch.format,
        batch.item, batch.usage, batch.tokens, advanced.unpinned_tokens - %(added_tokens)s +
        batch.tokens_through, advanced.last_position - %(added)s + batch.position, CASE WHEN batch.answers =
        -1 THEN advanced.answered_position ELSE advanced.last_position - %(added)s + batch.answers END,
        batch.reply_to, batch.cut_off, batch.public_id, COALESCE(batch.created_at, STATEMENT_TIMESTAMP())
    FROM advanced, UNNEST(%(role)s::text[], %(kind)s::text[], %(content)s::text[], %(wire)s::text[],
        %(metadata)s::text[], %(format)s::text[], %(item)s::text[], %(usage)s::text[], %(tokens)s::int[],
        %(tokens_through)s::bigint[], %(position)s::bigint[], %(answers)s::bigint[], %(reply_to)s::bigint[],
        %(cut_off)s::text[], %(public_id)s::uuid[], %(created_at)s::timestamptz[]) AS batch (role, kind,
        content, wire, metadata, format, item, usage, tokens, tokens_through, position, answers, reply_to,
        cut_off, public_id, created_at))
SELECT *
FROM advanced;

-- append: a limit of messages
WITH advanced AS (
    UPDATE convmemory_session
    SET last_position = last_position + 1,
    unpinned_count = unpinned_count + 1,
    unpinned_tokens = unpinned_tokens + %(added_tokens)s,
    settled_tokens = CASE WHEN open_calls = '' THEN unpinned_tokens ELSE settled_tokens END,
    newest_position = CASE WHEN open_calls = '' THEN last_position + 1 ELSE newest_position END,
    answered_position = call_position,
    counter = CASE WHEN last_position = 0
    OR counter = %(counter)s THEN %(counter)s ELSE '' END,
    revision = revision + 1,
    updated_at = STATEMENT_TIMESTAMP(),
    due_revision = CASE WHEN due_since IS NULL
    AND (unpinned_count + 1 - covered_count > %(max_messages)s)
    AND CASE WHEN open_calls = '' THEN unpinned_tokens ELSE settled_tokens END > covered_tokens THEN revision
        + 1 ELSE due_revision END,
    due_since = CASE WHEN due_since IS NULL
    AND (unpinned_count + 1 - covered_count > %(max_messages)s)
    AND CASE WHEN open_calls = '' THEN unpinned_tokens ELSE settled_tokens END > covered_tokens THEN
        STATEMENT_TIMESTAMP() ELSE due_since END
    WHERE name_hash = %(name_hash)s
    RETURNING id, last_position, unpinned_tokens, answered_position, due_since IS NOT NULL AS due,
    due_revision = revision AS turned_due), added AS (
    INSERT INTO convmemory_message (session_id, tokens_through, position, created_at, role, kind, content,
        tokens, public_id)
    SELECT id, unpinned_tokens, last_position, STATEMENT_TIMESTAMP(), %(role)s, %(kind)s, %(content)s,
        %(tokens)s, %(public_id)s
    FROM advanced)
SELECT *
FROM advanced;

-- append: limits of tokens and of messages
WITH advanced AS (
    UPDATE convmemory_session
    SET last_position = last_position + 1,
    unpinned_count = unpinned_count + 1,
    unpinned_tokens = unpinned_tokens + %(added_tokens)s,
    settled_tokens = CASE WHEN open_calls = '' THEN unpinned_tokens ELSE settled_tokens END,
    newest_position = CASE WHEN open_calls = '' THEN last_position + 1 ELSE newest_position END,
    answered_position = call_position,
    counter = CASE WHEN last_position = 0
    OR counter = %(counter)s THEN %(counter)s ELSE '' END,
    revision = revision + 1,
    updated_at = STATEMENT_TIMESTAMP(),
    due_revision = CASE WHEN due_since IS NULL
    AND (unpinned_tokens + %(added_tokens)s - covered_tokens > %(max_tokens)s
        OR unpinned_count + 1 - covered_count > %(max_messages)s)
    AND CASE WHEN open_calls = '' THEN unpinned_tokens ELSE settled_tokens END > covered_tokens THEN revision
        + 1 ELSE due_revision END,
    due_since = CASE WHEN due_since IS NULL
    AND (unpinned_tokens + %(added_tokens)s - covered_tokens > %(max_tokens)s
        OR unpinned_count + 1 - covered_count > %(max_messages)s)
    AND CASE WHEN open_calls = '' THEN unpinned_tokens ELSE settled_tokens END > covered_tokens THEN
        STATEMENT_TIMESTAMP() ELSE due_since END
    WHERE name_hash = %(name_hash)s
    RETURNING id, last_position, unpinned_tokens, answered_position, due_since IS NOT NULL AS due,
    due_revision = revision AS turned_due), added AS (
    INSERT INTO convmemory_message (session_id, tokens_through, position, created_at, role, kind, content,
        tokens, public_id)
    SELECT id, unpinned_tokens, last_position, STATEMENT_TIMESTAMP(), %(role)s, %(kind)s, %(content)s,
        %(tokens)s, %(public_id)s
    FROM advanced)
SELECT *
FROM advanced;

-- append: no limit
WITH advanced AS (
    UPDATE convmemory_session
    SET last_position = last_position + 1,
    unpinned_count = unpinned_count + 1,
    unpinned_tokens = unpinned_tokens + %(added_tokens)s,
    settled_tokens = CASE WHEN open_calls = '' THEN unpinned_tokens ELSE settled_tokens END,
    newest_position = CASE WHEN open_calls = '' THEN last_position + 1 ELSE newest_position END,
    answered_position = call_position,
    counter = CASE WHEN last_position = 0
    OR counter = %(counter)s THEN %(counter)s ELSE '' END,
    revision = revision + 1,
    updated_at = STATEMENT_TIMESTAMP()
    WHERE name_hash = %(name_hash)s
    RETURNING id, last_position, unpinned_tokens, answered_position, due_since IS NOT NULL AS due,
    due_revision = revision AS turned_due), added AS (
    INSERT INTO convmemory_message (session_id, tokens_through, position, created_at, role, kind, content,
        tokens, public_id)
    SELECT id, unpinned_tokens, last_position, STATEMENT_TIMESTAMP(), %(role)s, %(kind)s, %(content)s,
        %(tokens)s, %(public_id)s
    FROM advanced)
SELECT *
FROM advanced;

-- append: a limit of messages that are not indexed
WITH advanced AS (
    UPDATE convmemory_session
    SET last_position = last_position + 1,
    unpinned_count = unpinned_count + 1,
    unpinned_tokens = unpinned_tokens + %(added_tokens)s,
    settled_tokens = CASE WHEN open_calls = '' THEN unpinned_tokens ELSE settled_tokens END,
    newest_position = CASE WHEN open_calls = '' THEN last_position + 1 ELSE newest_position END,
    answered_position = call_position,
    counter = CASE WHEN last_position = 0
    OR counter = %(counter)s THEN %(counter)s ELSE '' END,
    revision = revision + 1,
    updated_at = STATEMENT_TIMESTAMP(),
    due_revision = CASE WHEN due_since IS NULL
    AND CASE WHEN open_calls = '' THEN last_position + 1 ELSE newest_position END - indexed_position >
        %(max_unindexed)s THEN revision + 1 ELSE due_revision END,
    due_since = CASE WHEN due_since IS NULL
    AND CASE WHEN open_calls = '' THEN last_position + 1 ELSE newest_position END - indexed_position >
        %(max_unindexed)s THEN STATEMENT_TIMESTAMP() ELSE due_since END
    WHERE name_hash = %(name_hash)s
    RETURNING id, last_position, unpinned_tokens, answered_position, due_since IS NOT NULL AS due,
    due_revision = revision AS turned_due), added AS (
    INSERT INTO convmemory_message (session_id, tokens_through, position, created_at, role, kind, content,
        tokens, public_id)
    SELECT id, unpinned_tokens, last_position, STATEMENT_TIMESTAMP(), %(role)s, %(kind)s, %(content)s,
        %(tokens)s, %(public_id)s
    FROM advanced)
SELECT *
FROM advanced;

-- append: a reply, and a limit of messages that are not indexed
WITH advanced AS (
    UPDATE convmemory_session
    SET last_position = last_position + 1,
    unpinned_count = unpinned_count + 1,
    unpinned_tokens = unpinned_tokens + %(added_tokens)s,
    settled_tokens = unpinned_tokens,
    newest_position = last_position + 1,
    answered_position = call_position,
    exchange_calls = '',
    open_calls = '',
    call_position = 0,
    counter = CASE WHEN last_position = 0
    OR counter = %(counter)s THEN %(counter)s ELSE '' END,
    revision = revision + 1,
    updated_at = STATEMENT_TIMESTAMP(),
    due_revision = CASE WHEN due_since IS NULL
    AND last_position + 1 - indexed_position > %(max_unindexed)s THEN revision + 1 ELSE due_revision END,
    due_since = CASE WHEN due_since IS NULL
    AND last_position + 1 - indexed_position > %(max_unindexed)s THEN STATEMENT_TIMESTAMP() ELSE due_since END
    WHERE name_hash = %(name_hash)s
    RETURNING id, last_position, unpinned_tokens, answered_position, due_since IS NOT NULL AS due,
    due_revision = revision AS turned_due), added AS (
    INSERT INTO convmemory_message (session_id, tokens_through, position, created_at, role, kind, content,
        tokens, public_id)
    SELECT id, unpinned_tokens, last_position, STATEMENT_TIMESTAMP(), %(role)s, %(kind)s, %(content)s,
        %(tokens)s, %(public_id)s
    FROM advanced)
SELECT *
FROM advanced;

-- append: all limits
WITH advanced AS (
    UPDATE convmemory_session
    SET last_position = last_position + 1,
    unpinned_count = unpinned_count + 1,
    unpinned_tokens = unpinned_tokens + %(added_tokens)s,
    settled_tokens = CASE WHEN open_calls = '' THEN unpinned_tokens ELSE settled_tokens END,
    newest_position = CASE WHEN open_calls = '' THEN last_position + 1 ELSE newest_position END,
    answered_position = call_position,
    counter = CASE WHEN last_position = 0
    OR counter = %(counter)s THEN %(counter)s ELSE '' END,
    revision = revision + 1,
    updated_at = STATEMENT_TIMESTAMP(),
    due_revision = CASE WHEN due_since IS NULL
    AND ((unpinned_tokens + %(added_tokens)s - covered_tokens > %(max_tokens)s
            OR unpinned_count + 1 - covered_count > %(max_messages)s)
        AND CASE WHEN open_calls = '' THEN unpinned_tokens ELSE settled_tokens END > covered_tokens
        OR CASE WHEN open_calls = '' THEN last_position + 1 ELSE newest_position END - indexed_position >
            %(max_unindexed)s) THEN revision + 1 ELSE due_revision END,
    due_since = CASE WHEN due_since IS NULL
    AND ((unpinned_tokens + %(added_tokens)s - covered_tokens > %(max_tokens)s
            OR unpinned_count + 1 - covered_count > %(max_messages)s)
        AND CASE WHEN open_calls = '' THEN unpinned_tokens ELSE settled_tokens END > covered_tokens
        OR CASE WHEN open_calls = '' THEN last_position + 1 ELSE newest_position END - indexed_position >
            %(max_unindexed)s) THEN STATEMENT_TIMESTAMP() ELSE due_since END
    WHERE name_hash = %(name_hash)s
    RETURNING id, last_position, unpinned_tokens, answered_position, due_since IS NOT NULL AS due,
    due_revision = revision AS turned_due), added AS (
    INSERT INTO convmemory_message (session_id, tokens_through, position, created_at, role, kind, content,
        tokens, public_id)
    SELECT id, unpinned_tokens, last_position, STATEMENT_TIMESTAMP(), %(role)s, %(kind)s, %(content)s,
        %(tokens)s, %(public_id)s
    FROM advanced)
SELECT *
FROM advanced;

-- append: a session that is given as a row
WITH advanced AS (
    UPDATE convmemory_session
    SET last_position = last_position + 1,
    unpinned_count = unpinned_count + 1,
    unpinned_tokens = unpinned_tokens + %(added_tokens)s,
    settled_tokens = CASE WHEN open_calls = '' THEN unpinned_tokens ELSE settled_tokens END,
    newest_position = CASE WHEN open_calls = '' THEN last_position + 1 ELSE newest_position END,
    answered_position = call_position,
    counter = CASE WHEN last_position = 0
    OR counter = %(counter)s THEN %(counter)s ELSE '' END,
    revision = revision + 1,
    updated_at = STATEMENT_TIMESTAMP()
    WHERE name_hash = %(name_hash)s
    AND id = %(id)s
    RETURNING id, last_position, unpinned_tokens, answered_position, due_since IS NOT NULL AS due,
    due_revision = revision AS turned_due), added AS (
    INSERT INTO convmemory_message (session_id, tokens_through, position, created_at, role, kind, content,
        tokens, public_id)
    SELECT id, unpinned_tokens, last_position, STATEMENT_TIMESTAMP(), %(role)s, %(kind)s, %(content)s,
        %(tokens)s, %(public_id)s
    FROM advanced)
SELECT *
FROM advanced;

-- append: every column, and an idempotency key
WITH advanced AS (
    UPDATE convmemory_session
    SET last_position = last_position + 1,
    unpinned_count = unpinned_count + 1,
    unpinned_tokens = unpinned_tokens + %(added_tokens)s,
    settled_tokens = unpinned_tokens,
    newest_position = last_position + 1,
    answered_position = call_position,
    exchange_calls = '',
    open_calls = '',
    call_position = 0,
    counter = CASE WHEN last_position = 0
    OR counter = %(counter)s THEN %(counter)s ELSE '' END,
    revision = revision + 1,
    updated_at = STATEMENT_TIMESTAMP()
    WHERE name_hash = %(name_hash)s
    RETURNING id, last_position, unpinned_tokens, answered_position, due_since IS NOT NULL AS due,
    due_revision = revision AS turned_due), used AS (
    INSERT INTO convmemory_usedkey (session_id, key_hash, first_position, size, content)
    SELECT id, %(key_hash)s, last_position, 1, %(key_content)s
    FROM advanced), added AS (
    INSERT INTO convmemory_message (session_id, tokens_through, position, created_at, role, kind, content,
        wire, metadata, usage, tokens, public_id)
    SELECT id, unpinned_tokens, last_position, %(created_at)s, %(role)s, %(kind)s, %(content)s, %(wire)s,
        %(metadata)s, %(usage)s, %(tokens)s, %(public_id)s
    FROM advanced)
SELECT *
FROM advanced;

-- append: several messages, an idempotency key
WITH advanced AS (
    UPDATE convmemory_session
    SET last_position = last_position + %(added)s,
    unpinned_count = unpinned_count + %(added_unpinned)s,
    unpinned_tokens = unpinned_tokens + %(added_tokens)s,
    settled_tokens = unpinned_tokens + %(settled)s,
    newest_position = last_position + %(newest)s,
    answered_position = call_position,
    exchange_calls = '',
    open_calls = '',
    call_position = 0,
    counter = CASE WHEN last_position = 0
    OR counter = %(counter)s THEN %(counter)s ELSE '' END,
    revision = revision + 1,
    updated_at = STATEMENT_TIMESTAMP()
    WHERE name_hash = %(name_hash)s
    RETURNING id, last_position, unpinned_tokens, answered_position, due_since IS NOT NULL AS due,
    due_revision = revision AS turned_due), used AS (
    INSERT INTO convmemory_usedkey (session_id, key_hash, first_position, size, content)
    SELECT id, %(key_hash)s, last_position - %(added)s + 1, %(added)s, %(key_content)s
    FROM advanced), added AS (
    INSERT INTO convmemory_message (session_id, role, kind, content, wire, metadata, format, item, usage,
        tokens, tokens_through, position, answers, reply_to, cut_off, public_id, created_at)
    SELECT advanced.id, batch.role, batch.kind, batch.content, batch.wire, batch.metadata, batch.format,
        batch.item, batch.usage, batch.tokens, advanced.unpinned_tokens - %(added_tokens)s +
        batch.tokens_through, advanced.last_position - %(added)s + batch.position, CASE WHEN batch.answers =
        -1 THEN advanced.answered_position ELSE advanced.last_position - %(added)s + batch.answers END,
        batch.reply_to, batch.cut_off, batch.public_id, COALESCE(batch.created_at, STATEMENT_TIMESTAMP())
    FROM advanced, UNNEST(%(role)s::text[], %(kind)s::text[], %(content)s::text[], %(wire)s::text[],
        %(metadata)s::text[], %(format)s::text[], %(item)s::text[], %(usage)s::text[], %(tokens)s::int[],
        %(tokens_through)s::bigint[], %(position)s::bigint[], %(answers)s::bigint[], %(reply_to)s::bigint[],
        %(cut_off)s::text[], %(public_id)s::uuid[], %(created_at)s::timestamptz[]) AS batch (role, kind,
        content, wire, metadata, format, item, usage, tokens, tokens_through, position, answers, reply_to,
        cut_off, public_id, created_at))
SELECT *
FROM advanced;

-- append: tool calls
WITH advanced AS (
    UPDATE convmemory_session
    SET last_position = last_position + 1,
    unpinned_count = unpinned_count + 1,
    unpinned_tokens = unpinned_tokens + %(added_tokens)s,
    settled_tokens = unpinned_tokens,
    newest_position = last_position + 1,
    answered_position = call_position,
    exchange_calls = %(exchange_calls)s,
    open_calls = %(open_calls)s,
    call_position = last_position + 1,
    counter = CASE WHEN last_position = 0
    OR counter = %(counter)s THEN %(counter)s ELSE '' END,
    revision = revision + 1,
    updated_at = STATEMENT_TIMESTAMP()
    WHERE name_hash = %(name_hash)s
    RETURNING id, last_position, unpinned_tokens, answered_position, due_since IS NOT NULL AS due,
    due_revision = revision AS turned_due), added AS (
    INSERT INTO convmemory_message (session_id, tokens_through, position, created_at, role, kind, wire,
        tokens, public_id)
    SELECT id, unpinned_tokens, last_position, STATEMENT_TIMESTAMP(), %(role)s, %(kind)s, %(wire)s,
        %(tokens)s, %(public_id)s
    FROM advanced)
SELECT *
FROM advanced;

-- append: tool calls with their result
WITH advanced AS (
    UPDATE convmemory_session
    SET last_position = last_position + %(added)s,
    unpinned_count = unpinned_count + %(added_unpinned)s,
    unpinned_tokens = unpinned_tokens + %(added_tokens)s,
    settled_tokens = unpinned_tokens + %(settled)s,
    newest_position = last_position + %(newest)s,
    answered_position = call_position,
    exchange_calls = %(exchange_calls)s,
    open_calls = %(open_calls)s,
    call_position = last_position + %(call_position)s,
    counter = CASE WHEN last_position = 0
    OR counter = %(counter)s THEN %(counter)s ELSE '' END,
    revision = revision + 1,
    updated_at = STATEMENT_TIMESTAMP()
    WHERE name_hash = %(name_hash)s
    RETURNING id, last_position, unpinned_tokens, answered_position, due_since IS NOT NULL AS due,
    due_revision = revision AS turned_due), added AS (
    INSERT INTO convmemory_message (session_id, role, kind, content, wire, metadata, format, item, usage,
        tokens, tokens_through, position, answers, reply_to, cut_off, public_id, created_at)
    SELECT advanced.id, batch.role, batch.kind, batch.content, batch.wire, batch.metadata, batch.format,
        batch.item, batch.usage, batch.tokens, advanced.unpinned_tokens - %(added_tokens)s +
        batch.tokens_through, advanced.last_position - %(added)s + batch.position, CASE WHEN batch.answers =
        -1 THEN advanced.answered_position ELSE advanced.last_position - %(added)s + batch.answers END,
        batch.reply_to, batch.cut_off, batch.public_id, COALESCE(batch.created_at, STATEMENT_TIMESTAMP())
    FROM advanced, UNNEST(%(role)s::text[], %(kind)s::text[], %(content)s::text[], %(wire)s::text[],
        %(metadata)s::text[], %(format)s::text[], %(item)s::text[], %(usage)s::text[], %(tokens)s::int[],
        %(tokens_through)s::bigint[], %(position)s::bigint[], %(answers)s::bigint[], %(reply_to)s::bigint[],
        %(cut_off)s::text[], %(public_id)s::uuid[], %(created_at)s::timestamptz[]) AS batch (role, kind,
        content, wire, metadata, format, item, usage, tokens, tokens_through, position, answers, reply_to,
        cut_off, public_id, created_at))
SELECT *
FROM advanced;

-- append: a tool result
WITH advanced AS (
    UPDATE convmemory_session
    SET last_position = last_position + 1,
    unpinned_count = unpinned_count + 1,
    unpinned_tokens = unpinned_tokens + %(added_tokens)s,
    settled_tokens = settled_tokens,
    newest_position = newest_position,
    answered_position = call_position,
    open_calls = REPLACE(open_calls, %(result0)s, ''),
    counter = CASE WHEN last_position = 0
    OR counter = %(counter)s THEN %(counter)s ELSE '' END,
    revision = revision + 1,
    updated_at = STATEMENT_TIMESTAMP()
    WHERE name_hash = %(name_hash)s
    AND open_calls <> ''
    AND exchange_calls LIKE %(like0)s
    AND exchange_calls NOT LIKE %(repeated)s
    RETURNING id, last_position, unpinned_tokens, answered_position, due_since IS NOT NULL AS due,
    due_revision = revision AS turned_due), added AS (
    INSERT INTO convmemory_message (session_id, tokens_through, position, created_at, answers, role, kind,
        content, wire, tokens, public_id)
    SELECT id, unpinned_tokens, last_position, STATEMENT_TIMESTAMP(), answered_position, %(role)s, %(kind)s,
        %(content)s, %(wire)s, %(tokens)s, %(public_id)s
    FROM advanced)
SELECT *
FROM advanced;

-- append: two tool results
WITH advanced AS (
    UPDATE convmemory_session
    SET last_position = last_position + %(added)s,
    unpinned_count = unpinned_count + %(added_unpinned)s,
    unpinned_tokens = unpinned_tokens + %(added_tokens)s,
    settled_tokens = settled_tokens,
    newest_position = newest_position,
    answered_position = call_position,
    open_calls = REPLACE(REPLACE(open_calls, %(result0)s, ''), %(result1)s, ''),
    counter = CASE WHEN last_position = 0
    OR counter = %(counter)s THEN %(counter)s ELSE '' END,
    revision = revision + 1,
    updated_at = STATEMENT_TIMESTAMP()
    WHERE name_hash = %(name_hash)s
    AND REPLACE(open_calls, %(result0)s, '') <> ''
    AND exchange_calls LIKE %(like0)s
    AND exchange_calls LIKE %(like1)s
    AND exchange_calls NOT LIKE %(repeated)s
    RETURNING id, last_position, unpinned_tokens, answered_position, due_since IS NOT NULL AS due,
    due_revision = revision AS turned_due), added AS (
    INSERT INTO convmemory_message (session_id, role, kind, content, wire, metadata, format, item, usage,
        tokens, tokens_through, position, answers, reply_to, cut_off, public_id, created_at)
    SELECT advanced.id, batch.role, batch.kind, batch.content, batch.wire, batch.metadata, batch.format,
        batch.item, batch.usage, batch.tokens, advanced.unpinned_tokens - %(added_tokens)s +
        batch.tokens_through, advanced.last_position - %(added)s + batch.position, CASE WHEN batch.answers =
        -1 THEN advanced.answered_position ELSE advanced.last_position - %(added)s + batch.answers END,
        batch.reply_to, batch.cut_off, batch.public_id, COALESCE(batch.created_at, STATEMENT_TIMESTAMP())
    FROM advanced, UNNEST(%(role)s::text[], %(kind)s::text[], %(content)s::text[], %(wire)s::text[],
        %(metadata)s::text[], %(format)s::text[], %(item)s::text[], %(usage)s::text[], %(tokens)s::int[],
        %(tokens_through)s::bigint[], %(position)s::bigint[], %(answers)s::bigint[], %(reply_to)s::bigint[],
        %(cut_off)s::text[], %(public_id)s::uuid[], %(created_at)s::timestamptz[]) AS batch (role, kind,
        content, wire, metadata, format, item, usage, tokens, tokens_through, position, answers, reply_to,
        cut_off, public_id, created_at))
SELECT *
FROM advanced;

-- append: a tool result, and a message of the user
WITH advanced AS (
    UPDATE convmemory_session
    SET last_position = last_position + %(added)s,
    unpinned_count = unpinned_count + %(added_unpinned)s,
    unpinned_tokens = unpinned_tokens + %(added_tokens)s,
    settled_tokens = CASE WHEN REPLACE(open_calls, %(result0)s, '') = '' THEN unpinned_tokens + %(settled)s
        ELSE settled_tokens END,
    newest_position = CASE WHEN REPLACE(open_calls, %(result0)s, '') = '' THEN last_position + %(newest)s ELSE
        newest_position END,
    answered_position = call_position,
    open_calls = REPLACE(open_calls, %(result0)s, ''),
    counter = CASE WHEN last_position = 0
    OR counter = %(counter)s THEN %(counter)s ELSE '' END,
    revision = revision + 1,
    updated_at = STATEMENT_TIMESTAMP()
    WHERE name_hash = %(name_hash)s
    AND open_calls <> ''
    AND exchange_calls LIKE %(like0)s
    AND exchange_calls NOT LIKE %(repeated)s
    RETURNING id, last_position, unpinned_tokens, answered_position, due_since IS NOT NULL AS due,
    due_revision = revision AS turned_due), added AS (
    INSERT INTO convmemory_message (session_id, role, kind, content, wire, metadata, format, item, usage,
        tokens, tokens_through, position, answers, reply_to, cut_off, public_id, created_at)
    SELECT advanced.id, batch.role, batch.kind, batch.content, batch.wire, batch.metadata, batch.format,
        batch.item, batch.usage, batch.tokens, advanced.unpinned_tokens - %(added_tokens)s +
        batch.tokens_through, advanced.last_position - %(added)s + batch.position, CASE WHEN batch.answers =
        -1 THEN advanced.answered_position ELSE advanced.last_position - %(added)s + batch.answers END,
        batch.reply_to, batch.cut_off, batch.public_id, COALESCE(batch.created_at, STATEMENT_TIMESTAMP())
    FROM advanced, UNNEST(%(role)s::text[], %(kind)s::text[], %(content)s::text[], %(wire)s::text[],
        %(metadata)s::text[], %(format)s::text[], %(item)s::text[], %(usage)s::text[], %(tokens)s::int[],
        %(tokens_through)s::bigint[], %(position)s::bigint[], %(answers)s::bigint[], %(reply_to)s::bigint[],
        %(cut_off)s::text[], %(public_id)s::uuid[], %(created_at)s::timestamptz[]) AS batch (role, kind,
        content, wire, metadata, format, item, usage, tokens, tokens_through, position, answers, reply_to,
        cut_off, public_id, created_at))
SELECT *
FROM advanced;

-- append: a pinned message
WITH advanced AS (
    UPDATE convmemory_session
    SET last_position = last_position + 1,
    unpinned_count = unpinned_count,
    unpinned_tokens = unpinned_tokens + %(added_tokens)s,
    settled_tokens = settled_tokens,
    newest_position = newest_position,
    pinned = pinned || ' ' || CAST(last_position + %(pinned0)s AS VARCHAR(20)) || %(tokens0)s,
    pinned_count = pinned_count + %(added_pinned)s,
    pinned_tokens = pinned_tokens + %(pinned_tokens)s,
    answered_position = call_position,
    counter = CASE WHEN last_position = 0
    OR counter = %(counter)s THEN %(counter)s ELSE '' END,
    revision = revision + 1,
    updated_at = STATEMENT_TIMESTAMP()
    WHERE name_hash = %(name_hash)s
    AND pinned_count <= %(max_pinned)s
    RETURNING id, last_position, unpinned_tokens, answered_position, due_since IS NOT NULL AS due,
    due_revision = revision AS turned_due), added AS (
    INSERT INTO convmemory_message (session_id, tokens_through, position, created_at, role, kind, content,
        tokens, public_id)
    SELECT id, unpinned_tokens, last_position, STATEMENT_TIMESTAMP(), %(role)s, %(kind)s, %(content)s,
        %(tokens)s, %(public_id)s
    FROM advanced)
SELECT *
FROM advanced;

-- append: two pinned messages
WITH advanced AS (
    UPDATE convmemory_session
    SET last_position = last_position + %(added)s,
    unpinned_count = unpinned_count + %(added_unpinned)s,
    unpinned_tokens = unpinned_tokens + %(added_tokens)s,
    settled_tokens = CASE WHEN open_calls = '' THEN unpinned_tokens + %(settled)s ELSE settled_tokens END,
    newest_position = CASE WHEN open_calls = '' THEN last_position + %(newest)s ELSE newest_position END,
    pinned = pinned || ' ' || CAST(last_position + %(pinned0)s AS VARCHAR(20)) || %(tokens0)s || ' ' ||
        CAST(last_position + %(pinned1)s AS VARCHAR(20)) || %(tokens1)s,
    pinned_count = pinned_count + %(added_pinned)s,
    pinned_tokens = pinned_tokens + %(pinned_tokens)s,
    answered_position = call_position,
    counter = CASE WHEN last_position = 0
    OR counter = %(counter)s THEN %(counter)s ELSE '' END,
    revision = revision + 1,
    updated_at = STATEMENT_TIMESTAMP()
    WHERE name_hash = %(name_hash)s
    AND pinned_count <= %(max_pinned)s
    RETURNING id, last_position, unpinned_tokens, answered_position, due_since IS NOT NULL AS due,
    due_revision = revision AS turned_due), added AS (
    INSERT INTO convmemory_message (session_id, role, kind, content, wire, metadata, format, item, usage,
        tokens, tokens_through, position, answers, reply_to, cut_off, public_id, created_at)
    SELECT advanced.id, batch.role, batch.kind, batch.content, batch.wire, batch.metadata, batch.format,
        batch.item, batch.usage, batch.tokens, advanced.unpinned_tokens - %(added_tokens)s +
        batch.tokens_through, advanced.last_position - %(added)s + batch.position, CASE WHEN batch.answers =
        -1 THEN advanced.answered_position ELSE advanced.last_position - %(added)s + batch.answers END,
        batch.reply_to, batch.cut_off, batch.public_id, COALESCE(batch.created_at, STATEMENT_TIMESTAMP())
    FROM advanced, UNNEST(%(role)s::text[], %(kind)s::text[], %(content)s::text[], %(wire)s::text[],
        %(metadata)s::text[], %(format)s::text[], %(item)s::text[], %(usage)s::text[], %(tokens)s::int[],
        %(tokens_through)s::bigint[], %(position)s::bigint[], %(answers)s::bigint[], %(reply_to)s::bigint[],
        %(cut_off)s::text[], %(public_id)s::uuid[], %(created_at)s::timestamptz[]) AS batch (role, kind,
        content, wire, metadata, format, item, usage, tokens, tokens_through, position, answers, reply_to,
        cut_off, public_id, created_at))
SELECT *
FROM advanced;

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
    %(public_id)s, STATEMENT_TIMESTAMP());

-- append, rows: several messages
-- append, rows: two pinned messages
INSERT INTO convmemory_message (session_id, role, kind, content, wire, metadata, format, item, usage, tokens,
    tokens_through, position, answers, reply_to, cut_off, public_id, created_at)
VALUES (%s, %s, %s, %s, %s, %s, %s, %s, %s, %s, %s, %s, %s, %s, %s, %s, COALESCE(%s, STATEMENT_TIMESTAMP())),
    (%s, %s, %s, %s, %s, %s, %s, %s, %s, %s, %s, %s, %s, %s, %s, %s, COALESCE(%s, STATEMENT_TIMESTAMP())),
    (%s, %s, %s, %s, %s, %s, %s, %s, %s, %s, %s, %s, %s, %s, %s, %s, COALESCE(%s, STATEMENT_TIMESTAMP()));

-- append, rows: every column, and an idempotency key
INSERT INTO convmemory_message (session_id, role, kind, content, wire, metadata, usage, tokens,
    tokens_through, position, public_id, created_at)
VALUES (%(session_id)s, %(role)s, %(kind)s, %(content)s, %(wire)s, %(metadata)s, %(usage)s, %(tokens)s,
    %(tokens_through)s, %(position)s, %(public_id)s, %(created_at)s);

-- append, rows: several messages, an idempotency key
-- append, rows: tool calls with their result
-- append, rows: two tool results
-- append, rows: a tool result, and a message of the user
INSERT INTO convmemory_message (session_id, role, kind, content, wire, metadata, format, item, usage, tokens,
    tokens_through, position, answers, reply_to, cut_off, public_id, created_at)
VALUES (%s, %s, %s, %s, %s, %s, %s, %s, %s, %s, %s, %s, %s, %s, %s, %s, COALESCE(%s, STATEMENT_TIMESTAMP())),
    (%s, %s, %s, %s, %s, %s, %s, %s, %s, %s, %s, %s, %s, %s, %s, %s, COALESCE(%s, STATEMENT_TIMESTAMP()));

-- append, rows: tool calls
INSERT INTO convmemory_message (session_id, role, kind, wire, tokens, tokens_through, position, public_id,
    created_at)
VALUES (%(session_id)s, %(role)s, %(kind)s, %(wire)s, %(tokens)s, %(tokens_through)s, %(position)s,
    %(public_id)s, STATEMENT_TIMESTAMP());

-- append, rows: a tool result
INSERT INTO convmemory_message (session_id, role, kind, content, wire, tokens, tokens_through, position,
    answers, public_id, created_at)
VALUES (%(session_id)s, %(role)s, %(kind)s, %(content)s, %(wire)s, %(tokens)s, %(tokens_through)s,
    %(position)s, %(answers)s, %(public_id)s, STATEMENT_TIMESTAMP());

-- load: everything
(
    SELECT m.position::bigint, m.role::text, m.kind::text, m.content::text, m.wire::text, m.metadata::text,
        m.tokens::bigint, m.answers::bigint, m.redacted_at IS NOT NULL
    FROM convmemory_message m
    WHERE m.session_id = (
        SELECT s.id
        FROM convmemory_session s
        WHERE s.name_hash = %(name_hash)s)
    AND m.position >= (
        SELECT 1
        FROM convmemory_session s
        WHERE s.name_hash = %(name_hash)s)
    ORDER BY m.position)
UNION ALL
SELECT NULL, NULL, NULL, NULL, JSON_BUILD_ARRAY(s.id, s.epoch, s.revision, s.due_since IS NOT NULL,
    s.last_position, s.unpinned_count, s.unpinned_tokens, s.settled_tokens, s.newest_position, s.pinned,
    s.call_position, s.exchange_calls, s.open_calls, s.covered_position, s.covered_count,
    s.covered_tokens)::text, (
    SELECT JSON_BUILD_ARRAY(v.version, v.first_position, v.last_position, v.text, v.tokens)::text
    FROM convmemory_summary v
    WHERE v.session_id = s.id
    AND v.version = s.current_version), NULL, NULL, NULL
FROM convmemory_session s
WHERE s.name_hash = %(name_hash)s;

-- load, partitioned: everything
(
    SELECT m.position::bigint, m.role::text, m.kind::text, m.content::text, m.wire::text, m.metadata::text,
        m.tokens::bigint, m.answers::bigint, m.redacted_at IS NOT NULL
    FROM convmemory_message m
    WHERE m.session_id = %(session_id)s
    AND m.position >= (
        SELECT 1
        FROM convmemory_session s
        WHERE s.name_hash = %(name_hash)s)
    ORDER BY m.position)
UNION ALL
SELECT NULL, NULL, NULL, NULL, JSON_BUILD_ARRAY(s.id, s.epoch, s.revision, s.due_since IS NOT NULL,
    s.last_position, s.unpinned_count, s.unpinned_tokens, s.settled_tokens, s.newest_position, s.pinned,
    s.call_position, s.exchange_calls, s.open_calls, s.covered_position, s.covered_count,
    s.covered_tokens)::text, (
    SELECT JSON_BUILD_ARRAY(v.version, v.first_position, v.last_position, v.text, v.tokens)::text
    FROM convmemory_summary v
    WHERE v.session_id = s.id
    AND v.version = s.current_version), NULL, NULL, NULL
FROM convmemory_session s
WHERE s.name_hash = %(name_hash)s;

-- load: the last messages
(
    SELECT m.position::bigint, m.role::text, m.kind::text, m.content::text, m.wire::text, m.metadata::text,
        m.tokens::bigint, m.answers::bigint, m.redacted_at IS NOT NULL
    FROM convmemory_message m
    WHERE m.session_id = (
        SELECT s.id
        FROM convmemory_session s
        WHERE s.name_hash = %(name_hash)s)
    AND m.position >= (
        SELECT GREATEST(1, LEAST(last_position + 1 - pinned_count - %(bound)s, newest_position))
        FROM convmemory_session s
        WHERE s.name_hash = %(name_hash)s)
    ORDER BY m.position)
UNION ALL
SELECT NULL, NULL, NULL, NULL, JSON_BUILD_ARRAY(s.id, s.epoch, s.revision, s.due_since IS NOT NULL,
    s.last_position, s.unpinned_count, s.unpinned_tokens, s.settled_tokens, s.newest_position, s.pinned,
    s.call_position, s.exchange_calls, s.open_calls, s.covered_position, s.covered_count,
    s.covered_tokens)::text, (
    SELECT JSON_BUILD_ARRAY(v.version, v.first_position, v.last_position, v.text, v.tokens)::text
    FROM convmemory_summary v
    WHERE v.session_id = s.id
    AND v.version = s.current_version), NULL, NULL, NULL
FROM convmemory_session s
WHERE s.name_hash = %(name_hash)s;

-- load, partitioned: the last messages
(
    SELECT m.position::bigint, m.role::text, m.kind::text, m.content::text, m.wire::text, m.metadata::text,
        m.tokens::bigint, m.answers::bigint, m.redacted_at IS NOT NULL
    FROM convmemory_message m
    WHERE m.session_id = %(session_id)s
    AND m.position >= (
        SELECT GREATEST(1, LEAST(last_position + 1 - pinned_count - %(bound)s, newest_position))
        FROM convmemory_session s
        WHERE s.name_hash = %(name_hash)s)
    ORDER BY m.position)
UNION ALL
SELECT NULL, NULL, NULL, NULL, JSON_BUILD_ARRAY(s.id, s.epoch, s.revision, s.due_since IS NOT NULL,
    s.last_position, s.unpinned_count, s.unpinned_tokens, s.settled_tokens, s.newest_position, s.pinned,
    s.call_position, s.exchange_calls, s.open_calls, s.covered_position, s.covered_count,
    s.covered_tokens)::text, (
    SELECT JSON_BUILD_ARRAY(v.version, v.first_position, v.last_position, v.text, v.tokens)::text
    FROM convmemory_summary v
    WHERE v.session_id = s.id
    AND v.version = s.current_version), NULL, NULL, NULL
FROM convmemory_session s
WHERE s.name_hash = %(name_hash)s;

-- load: the last tokens
(
    SELECT m.position::bigint, m.role::text, m.kind::text, m.content::text, m.wire::text, m.metadata::text,
        m.tokens::bigint, m.answers::bigint, m.redacted_at IS NOT NULL
    FROM convmemory_message m
    WHERE m.session_id = (
        SELECT s.id
        FROM convmemory_session s
        WHERE s.name_hash = %(name_hash)s)
    AND m.tokens_through > (
        SELECT GREATEST(0, LEAST(unpinned_tokens - %(bound)s, settled_tokens))
        FROM convmemory_session s
        WHERE s.name_hash = %(name_hash)s)
    ORDER BY m.tokens_through)
UNION ALL
SELECT NULL, NULL, NULL, NULL, JSON_BUILD_ARRAY(s.id, s.epoch, s.revision, s.due_since IS NOT NULL,
    s.last_position, s.unpinned_count, s.unpinned_tokens, s.settled_tokens, s.newest_position, s.pinned,
    s.call_position, s.exchange_calls, s.open_calls, s.covered_position, s.covered_count,
    s.covered_tokens)::text, (
    SELECT JSON_BUILD_ARRAY(v.version, v.first_position, v.last_position, v.text, v.tokens)::text
    FROM convmemory_summary v
    WHERE v.session_id = s.id
    AND v.version = s.current_version), NULL, NULL, NULL
FROM convmemory_session s
WHERE s.name_hash = %(name_hash)s;

-- load, partitioned: the last tokens
(
    SELECT m.position::bigint, m.role::text, m.kind::text, m.content::text, m.wire::text, m.metadata::text,
        m.tokens::bigint, m.answers::bigint, m.redacted_at IS NOT NULL
    FROM convmemory_message m
    WHERE m.session_id = %(session_id)s
    AND m.tokens_through > (
        SELECT GREATEST(0, LEAST(unpinned_tokens - %(bound)s, settled_tokens))
        FROM convmemory_session s
        WHERE s.name_hash = %(name_hash)s)
    ORDER BY m.tokens_through)
UNION ALL
SELECT NULL, NULL, NULL, NULL, JSON_BUILD_ARRAY(s.id, s.epoch, s.revision, s.due_since IS NOT NULL,
    s.last_position, s.unpinned_count, s.unpinned_tokens, s.settled_tokens, s.newest_position, s.pinned,
    s.call_position, s.exchange_calls, s.open_calls, s.covered_position, s.covered_count,
    s.covered_tokens)::text, (
    SELECT JSON_BUILD_ARRAY(v.version, v.first_position, v.last_position, v.text, v.tokens)::text
    FROM convmemory_summary v
    WHERE v.session_id = s.id
    AND v.version = s.current_version), NULL, NULL, NULL
FROM convmemory_session s
WHERE s.name_hash = %(name_hash)s;

-- load: the summary, and what it does not cover
(
    SELECT m.position::bigint, m.role::text, m.kind::text, m.content::text, m.wire::text, m.metadata::text,
        m.tokens::bigint, m.answers::bigint, m.redacted_at IS NOT NULL
    FROM convmemory_message m
    WHERE m.session_id = (
        SELECT s.id
        FROM convmemory_session s
        WHERE s.name_hash = %(name_hash)s)
    AND m.position >= (
        SELECT covered_position + 1
        FROM convmemory_session s
        WHERE s.name_hash = %(name_hash)s)
    ORDER BY m.position)
UNION ALL
SELECT NULL, NULL, NULL, NULL, JSON_BUILD_ARRAY(s.id, s.epoch, s.revision, s.due_since IS NOT NULL,
    s.last_position, s.unpinned_count, s.unpinned_tokens, s.settled_tokens, s.newest_position, s.pinned,
    s.call_position, s.exchange_calls, s.open_calls, s.covered_position, s.covered_count,
    s.covered_tokens)::text, (
    SELECT JSON_BUILD_ARRAY(v.version, v.first_position, v.last_position, v.text, v.tokens)::text
    FROM convmemory_summary v
    WHERE v.session_id = s.id
    AND v.version = s.current_version), NULL, NULL, NULL
FROM convmemory_session s
WHERE s.name_hash = %(name_hash)s;

-- load, partitioned: the summary, and what it does not cover
(
    SELECT m.position::bigint, m.role::text, m.kind::text, m.content::text, m.wire::text, m.metadata::text,
        m.tokens::bigint, m.answers::bigint, m.redacted_at IS NOT NULL
    FROM convmemory_message m
    WHERE m.session_id = %(session_id)s
    AND m.position >= (
        SELECT covered_position + 1
        FROM convmemory_session s
        WHERE s.name_hash = %(name_hash)s)
    ORDER BY m.position)
UNION ALL
SELECT NULL, NULL, NULL, NULL, JSON_BUILD_ARRAY(s.id, s.epoch, s.revision, s.due_since IS NOT NULL,
    s.last_position, s.unpinned_count, s.unpinned_tokens, s.settled_tokens, s.newest_position, s.pinned,
    s.call_position, s.exchange_calls, s.open_calls, s.covered_position, s.covered_count,
    s.covered_tokens)::text, (
    SELECT JSON_BUILD_ARRAY(v.version, v.first_position, v.last_position, v.text, v.tokens)::text
    FROM convmemory_summary v
    WHERE v.session_id = s.id
    AND v.version = s.current_version), NULL, NULL, NULL
FROM convmemory_session s
WHERE s.name_hash = %(name_hash)s;

-- load: the summary, and the last messages
(
    SELECT m.position::bigint, m.role::text, m.kind::text, m.content::text, m.wire::text, m.metadata::text,
        m.tokens::bigint, m.answers::bigint, m.redacted_at IS NOT NULL
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
    ORDER BY m.position)
UNION ALL
SELECT NULL, NULL, NULL, NULL, JSON_BUILD_ARRAY(s.id, s.epoch, s.revision, s.due_since IS NOT NULL,
    s.last_position, s.unpinned_count, s.unpinned_tokens, s.settled_tokens, s.newest_position, s.pinned,
    s.call_position, s.exchange_calls, s.open_calls, s.covered_position, s.covered_count,
    s.covered_tokens)::text, (
    SELECT JSON_BUILD_ARRAY(v.version, v.first_position, v.last_position, v.text, v.tokens)::text
    FROM convmemory_summary v
    WHERE v.session_id = s.id
    AND v.version = s.current_version), NULL, NULL, NULL
FROM convmemory_session s
WHERE s.name_hash = %(name_hash)s;

-- load, partitioned: the summary, and the last messages
(
    SELECT m.position::bigint, m.role::text, m.kind::text, m.content::text, m.wire::text, m.metadata::text,
        m.tokens::bigint, m.answers::bigint, m.redacted_at IS NOT NULL
    FROM convmemory_message m
    WHERE m.session_id = %(session_id)s
    AND m.position >= (
        SELECT GREATEST(covered_position + 1, LEAST(last_position + 1 - pinned_count - %(bound)s,
            newest_position))
        FROM convmemory_session s
        WHERE s.name_hash = %(name_hash)s)
    ORDER BY m.position)
UNION ALL
SELECT NULL, NULL, NULL, NULL, JSON_BUILD_ARRAY(s.id, s.epoch, s.revision, s.due_since IS NOT NULL,
    s.last_position, s.unpinned_count, s.unpinned_tokens, s.settled_tokens, s.newest_position, s.pinned,
    s.call_position, s.exchange_calls, s.open_calls, s.covered_position, s.covered_count,
    s.covered_tokens)::text, (
    SELECT JSON_BUILD_ARRAY(v.version, v.first_position, v.last_position, v.text, v.tokens)::text
    FROM convmemory_summary v
    WHERE v.session_id = s.id
    AND v.version = s.current_version), NULL, NULL, NULL
FROM convmemory_session s
WHERE s.name_hash = %(name_hash)s;

-- load: the summary, and the last tokens
(
    SELECT m.position::bigint, m.role::text, m.kind::text, m.content::text, m.wire::text, m.metadata::text,
        m.tokens::bigint, m.answers::bigint, m.redacted_at IS NOT NULL
    FROM convmemory_message m
    WHERE m.session_id = (
        SELECT s.id
        FROM convmemory_session s
        WHERE s.name_hash = %(name_hash)s)
    AND m.tokens_through > (
        SELECT GREATEST(covered_tokens, LEAST(unpinned_tokens - %(bound)s, settled_tokens))
        FROM convmemory_session s
        WHERE s.name_hash = %(name_hash)s)
    ORDER BY m.tokens_through)
UNION ALL
SELECT NULL, NULL, NULL, NULL, JSON_BUILD_ARRAY(s.id, s.epoch, s.revision, s.due_since IS NOT NULL,
    s.last_position, s.unpinned_count, s.unpinned_tokens, s.settled_tokens, s.newest_position, s.pinned,
    s.call_position, s.exchange_calls, s.open_calls, s.covered_position, s.covered_count,
    s.covered_tokens)::text, (
    SELECT JSON_BUILD_ARRAY(v.version, v.first_position, v.last_position, v.text, v.tokens)::text
    FROM convmemory_summary v
    WHERE v.session_id = s.id
    AND v.version = s.current_version), NULL, NULL, NULL
FROM convmemory_session s
WHERE s.name_hash = %(name_hash)s;

-- load, partitioned: the summary, and the last tokens
(
    SELECT m.position::bigint, m.role::text, m.kind::text, m.content::text, m.wire::text, m.metadata::text,
        m.tokens::bigint, m.answers::bigint, m.redacted_at IS NOT NULL
    FROM convmemory_message m
    WHERE m.session_id = %(session_id)s
    AND m.tokens_through > (
        SELECT GREATEST(covered_tokens, LEAST(unpinned_tokens - %(bound)s, settled_tokens))
        FROM convmemory_session s
        WHERE s.name_hash = %(name_hash)s)
    ORDER BY m.tokens_through)
UNION ALL
SELECT NULL, NULL, NULL, NULL, JSON_BUILD_ARRAY(s.id, s.epoch, s.revision, s.due_since IS NOT NULL,
    s.last_position, s.unpinned_count, s.unpinned_tokens, s.settled_tokens, s.newest_position, s.pinned,
    s.call_position, s.exchange_calls, s.open_calls, s.covered_position, s.covered_count,
    s.covered_tokens)::text, (
    SELECT JSON_BUILD_ARRAY(v.version, v.first_position, v.last_position, v.text, v.tokens)::text
    FROM convmemory_summary v
    WHERE v.session_id = s.id
    AND v.version = s.current_version), NULL, NULL, NULL
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
INSERT INTO convmemory_message (session_id, role, kind, content, wire, metadata, format, item, usage, tokens,
    tokens_through, position, answers, reply_to, cut_off, public_id, created_at, redacted_at)
SELECT %s, role, kind, content, wire, metadata, format, item, usage, tokens, tokens_through, position,
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
