-- Django 5.2

-- find
-- clear (2 of 4)
SELECT "convmemory_session"."id" AS "pk"
FROM "convmemory_session"
WHERE "convmemory_session"."name_hash" = %s
ORDER BY 1 ASC LIMIT 1;

-- create (1 of 2)
-- fork (4 of 14)
INSERT INTO "convmemory_session" ("public_id", "alias", "owner_id", "visitor", "key", "name_hash", "title",
    "metadata", "last_position", "unpinned_count", "unpinned_tokens", "settled_tokens", "newest_position",
    "pinned", "pinned_count", "pinned_tokens", "call_position", "answered_position", "exchange_calls",
    "open_calls", "last_version", "current_version", "covered_position", "covered_count", "covered_tokens",
    "due_since", "due_revision", "hinted_at", "attempts", "next_attempt_at", "lease_token",
    "lease_expires_at", "last_error", "epoch", "revision", "forked_from_id", "fork_position", "counter",
    "created_at", "updated_at")
VALUES (%s, %s, %s, %s, %s, %s, %s, %s, %s, %s, %s, %s, %s, %s, %s, %s, %s, %s, %s, %s, %s, %s, %s, %s, %s,
    %s, %s, %s, %s, %s, %s, %s, %s, %s, %s, %s, %s, %s, REPLACE(STRFTIME('%%Y-%%m-%%d %%H:%%M:%%f', 'now',
    %s) || '000', '.000000', ''), REPLACE(STRFTIME('%%Y-%%m-%%d %%H:%%M:%%f', 'now', %s) || '000', '.000000',
    ''))
RETURNING "convmemory_session"."id";

-- create (2 of 2)
-- fork (5 of 14)
SELECT "convmemory_session"."id", "convmemory_session"."public_id", "convmemory_session"."alias",
    "convmemory_session"."owner_id", "convmemory_session"."visitor", "convmemory_session"."key",
    "convmemory_session"."name_hash", "convmemory_session"."title", "convmemory_session"."metadata",
    "convmemory_session"."last_position", "convmemory_session"."unpinned_count",
    "convmemory_session"."unpinned_tokens", "convmemory_session"."settled_tokens",
    "convmemory_session"."newest_position", "convmemory_session"."pinned",
    "convmemory_session"."pinned_count", "convmemory_session"."pinned_tokens",
    "convmemory_session"."call_position", "convmemory_session"."answered_position",
    "convmemory_session"."exchange_calls", "convmemory_session"."open_calls",
    "convmemory_session"."last_version", "convmemory_session"."current_version",
    "convmemory_session"."covered_position", "convmemory_session"."covered_count",
    "convmemory_session"."covered_tokens", "convmemory_session"."due_since",
    "convmemory_session"."due_revision", "convmemory_session"."hinted_at", "convmemory_session"."attempts",
    "convmemory_session"."next_attempt_at", "convmemory_session"."lease_token",
    "convmemory_session"."lease_expires_at", "convmemory_session"."last_error", "convmemory_session"."epoch",
    "convmemory_session"."revision", "convmemory_session"."forked_from_id",
    "convmemory_session"."fork_position", "convmemory_session"."counter", "convmemory_session"."created_at",
    "convmemory_session"."updated_at", REPLACE(STRFTIME('%%Y-%%m-%%d %%H:%%M:%%f', 'now', %s) || '000',
    '.000000', '') AS "now", "auth_user"."id", "auth_user"."password", "auth_user"."last_login",
    "auth_user"."is_superuser", "auth_user"."username", "auth_user"."first_name", "auth_user"."last_name",
    "auth_user"."email", "auth_user"."is_staff", "auth_user"."is_active", "auth_user"."date_joined"
FROM "convmemory_session" LEFT OUTER JOIN "auth_user" ON ("convmemory_session"."owner_id" = "auth_user"."id")
WHERE "convmemory_session"."id" = %s LIMIT 21;

-- update
UPDATE "convmemory_session"
SET "title" = %s,
    "revision" = ("convmemory_session"."revision" + %s),
    "updated_at" = REPLACE(STRFTIME('%%Y-%%m-%%d %%H:%%M:%%f', 'now', %s) || '000', '.000000', '')
WHERE ("convmemory_session"."name_hash" = %s AND "convmemory_session"."revision" = %s);

-- delete (1 of 7)
UPDATE "convmemory_session"
SET "epoch" = ("convmemory_session"."epoch" + %s)
WHERE ("convmemory_session"."name_hash" = %s AND "convmemory_session"."revision" = %s);

-- delete (2 of 7)
-- fork (2 of 14)
-- truncate (2 of 10)
SELECT "convmemory_session"."id", "convmemory_session"."public_id", "convmemory_session"."alias",
    "convmemory_session"."owner_id", "convmemory_session"."visitor", "convmemory_session"."key",
    "convmemory_session"."name_hash", "convmemory_session"."title", "convmemory_session"."metadata",
    "convmemory_session"."last_position", "convmemory_session"."unpinned_count",
    "convmemory_session"."unpinned_tokens", "convmemory_session"."settled_tokens",
    "convmemory_session"."newest_position", "convmemory_session"."pinned",
    "convmemory_session"."pinned_count", "convmemory_session"."pinned_tokens",
    "convmemory_session"."call_position", "convmemory_session"."answered_position",
    "convmemory_session"."exchange_calls", "convmemory_session"."open_calls",
    "convmemory_session"."last_version", "convmemory_session"."current_version",
    "convmemory_session"."covered_position", "convmemory_session"."covered_count",
    "convmemory_session"."covered_tokens", "convmemory_session"."due_since",
    "convmemory_session"."due_revision", "convmemory_session"."hinted_at", "convmemory_session"."attempts",
    "convmemory_session"."next_attempt_at", "convmemory_session"."lease_token",
    "convmemory_session"."lease_expires_at", "convmemory_session"."last_error", "convmemory_session"."epoch",
    "convmemory_session"."revision", "convmemory_session"."forked_from_id",
    "convmemory_session"."fork_position", "convmemory_session"."counter", "convmemory_session"."created_at",
    "convmemory_session"."updated_at"
FROM "convmemory_session"
WHERE "convmemory_session"."name_hash" = %s LIMIT 21;

-- delete (3 of 7)
-- erase (7 of 11)
UPDATE "convmemory_session"
SET "forked_from_id" = NULL
WHERE "convmemory_session"."forked_from_id" = %s;

-- delete (4 of 7)
-- erase (8 of 11)
DELETE
FROM "convmemory_message"
WHERE "convmemory_message"."session_id" IN (%s);

-- delete (5 of 7)
-- erase (9 of 11)
DELETE
FROM "convmemory_summary"
WHERE "convmemory_summary"."session_id" IN (%s);

-- delete (6 of 7)
-- erase (10 of 11)
UPDATE "convmemory_attempt"
SET "session_id" = NULL
WHERE "convmemory_attempt"."session_id" IN (%s);

-- delete (7 of 7)
-- erase (11 of 11)
DELETE
FROM "convmemory_session"
WHERE "convmemory_session"."id" IN (%s);

-- history, the last messages
SELECT "convmemory_message"."position" AS "position", "convmemory_message"."created_at" AS "created_at",
    "convmemory_message"."role" AS "role", "convmemory_message"."kind" AS "kind",
    "convmemory_message"."content" AS "content", "convmemory_message"."wire" AS "wire",
    "convmemory_message"."metadata" AS "metadata", "convmemory_message"."tokens" AS "tokens",
    "convmemory_message"."redacted_at" AS "redacted_at"
FROM "convmemory_message"
WHERE ("convmemory_message"."session_id" = (
    SELECT U0."id" AS "pk"
    FROM "convmemory_session" U0
    WHERE U0."name_hash" = %s LIMIT 1
) AND "convmemory_message"."position" >= (
    SELECT ((U0."last_position" + %s) - %s) AS "first"
    FROM "convmemory_session" U0
    WHERE U0."name_hash" = %s LIMIT 1
))
ORDER BY "convmemory_message"."session_id" DESC, 1 DESC LIMIT 50;

-- history, before a position
SELECT "convmemory_message"."position" AS "position", "convmemory_message"."created_at" AS "created_at",
    "convmemory_message"."role" AS "role", "convmemory_message"."kind" AS "kind",
    "convmemory_message"."content" AS "content", "convmemory_message"."wire" AS "wire",
    "convmemory_message"."metadata" AS "metadata", "convmemory_message"."tokens" AS "tokens",
    "convmemory_message"."redacted_at" AS "redacted_at"
FROM "convmemory_message"
WHERE ("convmemory_message"."session_id" = (
    SELECT U0."id" AS "pk"
    FROM "convmemory_session" U0
    WHERE U0."name_hash" = %s LIMIT 1
) AND "convmemory_message"."position" < %s AND "convmemory_message"."position" >= (
    SELECT (MIN((U0."last_position" + %s), %s) - %s) AS "first"
    FROM "convmemory_session" U0
    WHERE U0."name_hash" = %s LIMIT 1
))
ORDER BY "convmemory_message"."session_id" DESC, 1 DESC LIMIT 50;

-- history, after a position
SELECT "convmemory_message"."position" AS "position", "convmemory_message"."created_at" AS "created_at",
    "convmemory_message"."role" AS "role", "convmemory_message"."kind" AS "kind",
    "convmemory_message"."content" AS "content", "convmemory_message"."wire" AS "wire",
    "convmemory_message"."metadata" AS "metadata", "convmemory_message"."tokens" AS "tokens",
    "convmemory_message"."redacted_at" AS "redacted_at"
FROM "convmemory_message"
WHERE ("convmemory_message"."session_id" = (
    SELECT U0."id" AS "pk"
    FROM "convmemory_session" U0
    WHERE U0."name_hash" = %s LIMIT 1
) AND "convmemory_message"."position" > %s AND "convmemory_message"."position" <= %s)
ORDER BY "convmemory_message"."session_id" ASC, 1 ASC LIMIT 50;

-- paused
SELECT "convmemory_attempt"."outcome" AS "outcome", "convmemory_attempt"."started_at" AS "started_at",
    "convmemory_attempt"."duration_seconds" AS "duration_seconds", REPLACE(STRFTIME('%%Y-%%m-%%d %%H:%%M:%%f',
    'now', %s) || '000', '.000000', '') AS "clock1"
FROM "convmemory_attempt"
WHERE "convmemory_attempt"."alias" = %s
ORDER BY 2 DESC, "convmemory_attempt"."id" DESC LIMIT 1;

-- waiting
SELECT COUNT(*)
FROM (
    SELECT "convmemory_session"."id" AS "col1"
    FROM "convmemory_session"
    WHERE ("convmemory_session"."due_since" IS NOT NULL AND ("convmemory_session"."lease_expires_at" IS NULL
        OR "convmemory_session"."lease_expires_at" <= (REPLACE(STRFTIME('%%Y-%%m-%%d %%H:%%M:%%f', 'now',
        %s) || '000', '.000000', ''))) AND ("convmemory_session"."next_attempt_at" IS NULL
        OR "convmemory_session"."next_attempt_at" <= (REPLACE(STRFTIME('%%Y-%%m-%%d %%H:%%M:%%f', 'now',
        %s) || '000', '.000000', ''))) AND "convmemory_session"."alias" = %s
        AND "convmemory_session"."hinted_at" > (REPLACE(STRFTIME('%%Y-%%m-%%d %%H:%%M:%%f', 'now',
        %s) || '000', '.000000', ''))
        AND "convmemory_session"."hinted_at" <= (REPLACE(STRFTIME('%%Y-%%m-%%d %%H:%%M:%%f', 'now',
        %s) || '000', '.000000', ''))) LIMIT 10
) subquery;

-- sweep (1 of 4)
SELECT %s AS "a"
FROM "convmemory_session"
WHERE ("convmemory_session"."due_since" IS NOT NULL AND ("convmemory_session"."lease_expires_at" IS NULL
    OR "convmemory_session"."lease_expires_at" <= (REPLACE(STRFTIME('%%Y-%%m-%%d %%H:%%M:%%f', 'now',
    %s) || '000', '.000000', ''))) AND ("convmemory_session"."next_attempt_at" IS NULL
    OR "convmemory_session"."next_attempt_at" <= (REPLACE(STRFTIME('%%Y-%%m-%%d %%H:%%M:%%f', 'now',
    %s) || '000', '.000000', ''))) AND "convmemory_session"."alias" = %s
    AND ("convmemory_session"."hinted_at" IS NULL
    OR "convmemory_session"."hinted_at" <= (REPLACE(STRFTIME('%%Y-%%m-%%d %%H:%%M:%%f', 'now', %s) || '000',
    '.000000', '')))) LIMIT 1;

-- sweep (2 of 4)
SELECT "convmemory_session"."id" AS "pk"
FROM "convmemory_session"
WHERE ("convmemory_session"."due_since" IS NOT NULL AND ("convmemory_session"."lease_expires_at" IS NULL
    OR "convmemory_session"."lease_expires_at" <= (REPLACE(STRFTIME('%%Y-%%m-%%d %%H:%%M:%%f', 'now',
    %s) || '000', '.000000', ''))) AND ("convmemory_session"."next_attempt_at" IS NULL
    OR "convmemory_session"."next_attempt_at" <= (REPLACE(STRFTIME('%%Y-%%m-%%d %%H:%%M:%%f', 'now',
    %s) || '000', '.000000', ''))) AND "convmemory_session"."alias" = %s
    AND ("convmemory_session"."hinted_at" IS NULL
    OR "convmemory_session"."hinted_at" <= (REPLACE(STRFTIME('%%Y-%%m-%%d %%H:%%M:%%f', 'now', %s) || '000',
    '.000000', ''))))
ORDER BY "convmemory_session"."due_since" ASC, 1 ASC LIMIT 10;

-- sweep (3 of 4)
-- sweep (4 of 4)
UPDATE "convmemory_session"
SET "hinted_at" = REPLACE(STRFTIME('%%Y-%%m-%%d %%H:%%M:%%f', 'now', %s) || '000', '.000000', '')
WHERE ("convmemory_session"."due_since" IS NOT NULL AND ("convmemory_session"."lease_expires_at" IS NULL
    OR "convmemory_session"."lease_expires_at" <= (REPLACE(STRFTIME('%%Y-%%m-%%d %%H:%%M:%%f', 'now',
    %s) || '000', '.000000', ''))) AND ("convmemory_session"."next_attempt_at" IS NULL
    OR "convmemory_session"."next_attempt_at" <= (REPLACE(STRFTIME('%%Y-%%m-%%d %%H:%%M:%%f', 'now',
    %s) || '000', '.000000', ''))) AND "convmemory_session"."alias" = %s
    AND ("convmemory_session"."hinted_at" IS NULL
    OR "convmemory_session"."hinted_at" <= (REPLACE(STRFTIME('%%Y-%%m-%%d %%H:%%M:%%f', 'now', %s) || '000',
    '.000000', ''))) AND "convmemory_session"."id" = %s);

-- unhint
UPDATE "convmemory_session"
SET "hinted_at" = NULL
WHERE "convmemory_session"."id" IN (%s);

-- claim (1 of 3)
UPDATE "convmemory_session"
SET "lease_token" = %s,
    "lease_expires_at" = REPLACE(STRFTIME('%%Y-%%m-%%d %%H:%%M:%%f', 'now', %s) || '000', '.000000', ''),
    "attempts" = ("convmemory_session"."attempts" + %s),
    "revision" = ("convmemory_session"."revision" + %s)
WHERE ("convmemory_session"."id" = %s AND "convmemory_session"."due_since" IS NOT NULL
    AND ("convmemory_session"."lease_expires_at" IS NULL
    OR "convmemory_session"."lease_expires_at" <= (REPLACE(STRFTIME('%%Y-%%m-%%d %%H:%%M:%%f', 'now',
    %s) || '000', '.000000', ''))) AND ("convmemory_session"."next_attempt_at" IS NULL
    OR "convmemory_session"."next_attempt_at" <= (REPLACE(STRFTIME('%%Y-%%m-%%d %%H:%%M:%%f', 'now',
    %s) || '000', '.000000', ''))));

-- claim (2 of 3)
-- claim_rebuild (4 of 5)
-- fork (14 of 14)
-- redact (16 of 28)
-- redact (25 of 28)
SELECT "convmemory_session"."id", "convmemory_session"."public_id", "convmemory_session"."alias",
    "convmemory_session"."owner_id", "convmemory_session"."visitor", "convmemory_session"."key",
    "convmemory_session"."name_hash", "convmemory_session"."title", "convmemory_session"."metadata",
    "convmemory_session"."last_position", "convmemory_session"."unpinned_count",
    "convmemory_session"."unpinned_tokens", "convmemory_session"."settled_tokens",
    "convmemory_session"."newest_position", "convmemory_session"."pinned",
    "convmemory_session"."pinned_count", "convmemory_session"."pinned_tokens",
    "convmemory_session"."call_position", "convmemory_session"."answered_position",
    "convmemory_session"."exchange_calls", "convmemory_session"."open_calls",
    "convmemory_session"."last_version", "convmemory_session"."current_version",
    "convmemory_session"."covered_position", "convmemory_session"."covered_count",
    "convmemory_session"."covered_tokens", "convmemory_session"."due_since",
    "convmemory_session"."due_revision", "convmemory_session"."hinted_at", "convmemory_session"."attempts",
    "convmemory_session"."next_attempt_at", "convmemory_session"."lease_token",
    "convmemory_session"."lease_expires_at", "convmemory_session"."last_error", "convmemory_session"."epoch",
    "convmemory_session"."revision", "convmemory_session"."forked_from_id",
    "convmemory_session"."fork_position", "convmemory_session"."counter", "convmemory_session"."created_at",
    "convmemory_session"."updated_at"
FROM "convmemory_session"
WHERE "convmemory_session"."id" = %s LIMIT 21;

-- claim (3 of 3)
SELECT REPLACE(STRFTIME('%%Y-%%m-%%d %%H:%%M:%%f', 'now', %s) || '000', '.000000', '') AS "clock1"
FROM "convmemory_session"
WHERE "convmemory_session"."id" = %s LIMIT 21;

-- turns
SELECT "convmemory_message"."position" AS "position", "convmemory_message"."tokens" AS "tokens",
    "convmemory_message"."answers" AS "answers"
FROM "convmemory_message"
WHERE ("convmemory_message"."position" > %s AND "convmemory_message"."position" <= %s
    AND "convmemory_message"."session_id" = %s AND NOT ("convmemory_message"."role" IN (%s, %s)))
ORDER BY 1 ASC;

-- messages
SELECT "convmemory_message"."position" AS "position", "convmemory_message"."role" AS "role",
    "convmemory_message"."kind" AS "kind", "convmemory_message"."content" AS "content",
    "convmemory_message"."wire" AS "wire", "convmemory_message"."metadata" AS "metadata",
    "convmemory_message"."tokens" AS "tokens", "convmemory_message"."answers" AS "answers",
    "convmemory_message"."redacted_at" AS "redacted_at"
FROM "convmemory_message"
WHERE ("convmemory_message"."position" > %s AND "convmemory_message"."position" <= %s
    AND "convmemory_message"."session_id" = %s AND NOT ("convmemory_message"."role" IN (%s, %s))
    AND "convmemory_message"."position" >= %s AND "convmemory_message"."position" <= %s)
ORDER BY 1 ASC;

-- extend
UPDATE "convmemory_session"
SET "lease_expires_at" = REPLACE(STRFTIME('%%Y-%%m-%%d %%H:%%M:%%f', 'now', %s) || '000', '.000000', '')
WHERE ("convmemory_session"."epoch" = %s
    AND "convmemory_session"."lease_expires_at" > (REPLACE(STRFTIME('%%Y-%%m-%%d %%H:%%M:%%f', 'now',
    %s) || '000', '.000000', '')) AND "convmemory_session"."lease_token" = %s
    AND "convmemory_session"."id" = %s);

-- record (1 of 2)
UPDATE "convmemory_session"
SET "revision" = "convmemory_session"."revision"
WHERE "convmemory_session"."id" = %s;

-- record (2 of 2)
-- publish (3 of 3)
INSERT INTO "convmemory_attempt" ("session_id", "alias", "first_position", "last_position", "started_at",
    "due_seconds", "duration_seconds", "outcome", "error", "model", "prompt_tokens", "completion_tokens",
    "cost", "version")
VALUES (%s, %s, %s, %s, REPLACE(STRFTIME('%%Y-%%m-%%d %%H:%%M:%%f', 'now', %s) || '000', '.000000', ''), %s,
    %s, %s, %s, %s, %s, %s, %s, %s)
RETURNING "convmemory_attempt"."id";

-- publish (1 of 3)
UPDATE "convmemory_session"
SET "due_since" = CASE WHEN ("convmemory_session"."unpinned_tokens" > %s
    AND "convmemory_session"."settled_tokens" > %s) THEN COALESCE("convmemory_session"."due_since",
    REPLACE(STRFTIME('%%Y-%%m-%%d %%H:%%M:%%f', 'now', %s) || '000', '.000000', '')) ELSE NULL END,
    "current_version" = %s,
    "covered_position" = %s,
    "covered_count" = %s,
    "covered_tokens" = %s,
    "last_version" = %s,
    "attempts" = %s,
    "next_attempt_at" = NULL,
    "last_error" = %s,
    "lease_expires_at" = REPLACE(STRFTIME('%%Y-%%m-%%d %%H:%%M:%%f', 'now', %s) || '000', '.000000', ''),
    "revision" = ("convmemory_session"."revision" + %s),
    "updated_at" = REPLACE(STRFTIME('%%Y-%%m-%%d %%H:%%M:%%f', 'now', %s) || '000', '.000000', '')
WHERE ("convmemory_session"."epoch" = %s
    AND "convmemory_session"."lease_expires_at" > (REPLACE(STRFTIME('%%Y-%%m-%%d %%H:%%M:%%f', 'now',
    %s) || '000', '.000000', '')) AND "convmemory_session"."lease_token" = %s
    AND "convmemory_session"."id" = %s AND "convmemory_session"."covered_position" = %s
    AND "convmemory_session"."last_version" = %s);

-- publish (2 of 3)
INSERT INTO "convmemory_summary" ("session_id", "version", "parent_version", "first_position",
    "last_position", "covered_count", "covered_tokens", "text", "tokens", "model", "shortened", "fallback",
    "building", "prompt_hash", "invalidated_at", "created_at")
VALUES (%s, %s, %s, %s, %s, %s, %s, %s, %s, %s, %s, %s, %s, %s, %s,
    REPLACE(STRFTIME('%%Y-%%m-%%d %%H:%%M:%%f', 'now', %s) || '000', '.000000', ''))
RETURNING "convmemory_summary"."id";

-- release (1 of 2)
UPDATE "convmemory_session"
SET "due_since" = CASE
    WHEN ("convmemory_session"."unpinned_tokens" > ("convmemory_session"."covered_tokens" + %s)
    AND "convmemory_session"."settled_tokens" > ("convmemory_session"."covered_tokens"))
    THEN COALESCE("convmemory_session"."due_since", REPLACE(STRFTIME('%%Y-%%m-%%d %%H:%%M:%%f', 'now',
    %s) || '000', '.000000', '')) ELSE NULL END,
    "lease_token" = %s,
    "lease_expires_at" = NULL,
    "attempts" = %s,
    "last_error" = %s,
    "next_attempt_at" = NULL,
    "revision" = ("convmemory_session"."revision" + %s),
    "hinted_at" = REPLACE(STRFTIME('%%Y-%%m-%%d %%H:%%M:%%f', 'now', %s) || '000', '.000000', '')
WHERE ("convmemory_session"."id" = %s AND "convmemory_session"."lease_token" = %s);

-- release (2 of 2)
SELECT %s AS "a"
FROM "convmemory_session"
WHERE ("convmemory_session"."id" = %s AND "convmemory_session"."due_since" IS NOT NULL) LIMIT 1;

-- claim_rebuild (1 of 5)
UPDATE "convmemory_session"
SET "lease_token" = %s,
    "lease_expires_at" = REPLACE(STRFTIME('%%Y-%%m-%%d %%H:%%M:%%f', 'now', %s) || '000', '.000000', ''),
    "epoch" = ("convmemory_session"."epoch" + %s),
    "revision" = ("convmemory_session"."revision" + %s)
WHERE ("convmemory_session"."id" = %s AND "convmemory_session"."current_version" > %s
    AND ("convmemory_session"."lease_expires_at" IS NULL
    OR "convmemory_session"."lease_expires_at" <= (REPLACE(STRFTIME('%%Y-%%m-%%d %%H:%%M:%%f', 'now',
    %s) || '000', '.000000', ''))));

-- claim_rebuild (2 of 5)
SELECT "convmemory_summary"."id", "convmemory_summary"."session_id", "convmemory_summary"."version",
    "convmemory_summary"."parent_version", "convmemory_summary"."first_position",
    "convmemory_summary"."last_position", "convmemory_summary"."covered_count",
    "convmemory_summary"."covered_tokens", "convmemory_summary"."text", "convmemory_summary"."tokens",
    "convmemory_summary"."model", "convmemory_summary"."shortened", "convmemory_summary"."fallback",
    "convmemory_summary"."building", "convmemory_summary"."prompt_hash",
    "convmemory_summary"."invalidated_at", "convmemory_summary"."created_at"
FROM "convmemory_summary"
WHERE ("convmemory_summary"."session_id" = %s AND "convmemory_summary"."invalidated_at" IS NULL
    AND "convmemory_summary"."building")
ORDER BY "convmemory_summary"."version" ASC;

-- claim_rebuild (3 of 5)
UPDATE "convmemory_summary"
SET "invalidated_at" = REPLACE(STRFTIME('%%Y-%%m-%%d %%H:%%M:%%f', 'now', %s) || '000', '.000000', '')
WHERE ("convmemory_summary"."session_id" = %s AND "convmemory_summary"."building"
    AND "convmemory_summary"."invalidated_at" IS NULL);

-- claim_rebuild (5 of 5)
SELECT "convmemory_summary"."id", "convmemory_summary"."session_id", "convmemory_summary"."version",
    "convmemory_summary"."parent_version", "convmemory_summary"."first_position",
    "convmemory_summary"."last_position", "convmemory_summary"."covered_count",
    "convmemory_summary"."covered_tokens", "convmemory_summary"."text", "convmemory_summary"."tokens",
    "convmemory_summary"."model", "convmemory_summary"."shortened", "convmemory_summary"."fallback",
    "convmemory_summary"."building", "convmemory_summary"."prompt_hash",
    "convmemory_summary"."invalidated_at", "convmemory_summary"."created_at"
FROM "convmemory_summary"
WHERE ("convmemory_summary"."session_id" = %s AND "convmemory_summary"."version" = %s) LIMIT 21;

-- fork (1 of 14)
UPDATE "convmemory_session"
SET "revision" = "convmemory_session"."revision"
WHERE "convmemory_session"."name_hash" = %s;

-- fork (3 of 14)
-- adopt (4 of 5)
SELECT %s AS "a"
FROM "convmemory_session"
WHERE "convmemory_session"."name_hash" = %s LIMIT 1;

-- fork (6 of 14)
-- truncate (3 of 10)
SELECT "convmemory_message"."position" AS "position", "convmemory_message"."tokens" AS "tokens",
    "convmemory_message"."tokens_through" AS "tokens_through"
FROM "convmemory_message"
WHERE ("convmemory_message"."position" <= %s AND "convmemory_message"."session_id" = %s
    AND NOT ("convmemory_message"."role" IN (%s, %s)))
ORDER BY 1 DESC LIMIT 1;

-- fork (7 of 14)
-- truncate (4 of 10)
SELECT "convmemory_message"."position" AS "position", "convmemory_message"."tokens" AS "tokens",
    "convmemory_message"."tokens_through" AS "tokens_through", "convmemory_message"."wire" AS "wire"
FROM "convmemory_message"
WHERE ("convmemory_message"."position" <= %s AND "convmemory_message"."session_id" = %s
    AND "convmemory_message"."role" = %s)
ORDER BY 1 DESC LIMIT 1;

-- fork (8 of 14)
-- truncate (5 of 10)
SELECT "convmemory_message"."position" AS "position", "convmemory_message"."wire" AS "wire"
FROM "convmemory_message"
WHERE ("convmemory_message"."position" <= %s AND "convmemory_message"."session_id" = %s
    AND "convmemory_message"."answers" = %s AND "convmemory_message"."position" > %s)
ORDER BY 1 ASC;

-- fork (9 of 14)
INSERT INTO convmemory_message (session_id, role, kind, content, wire, metadata, usage, tokens,
    tokens_through, position, answers, idempotency_key, payload_hash, created_at, redacted_at)
SELECT %s, role, kind, content, wire, metadata, usage, tokens, tokens_through, position, answers, NULL, '',
    created_at, redacted_at
FROM convmemory_message
WHERE session_id = %s
    AND position <= %s;

-- fork (10 of 14)
INSERT INTO convmemory_summary (session_id, version, parent_version, first_position, last_position,
    covered_count, covered_tokens, text, tokens, model, shortened, fallback, building, prompt_hash,
    created_at)
SELECT %s, version, parent_version, first_position, last_position, covered_count, covered_tokens, text,
    tokens, model, shortened, fallback, building, prompt_hash, created_at
FROM convmemory_summary
WHERE session_id = %s
    AND last_position <= %s
    AND invalidated_at IS NULL
    AND building = %s;

-- fork (11 of 14)
-- redact (17 of 28)
-- redact (26 of 28)
-- truncate (8 of 10)
UPDATE "convmemory_summary"
SET "invalidated_at" = REPLACE(STRFTIME('%%Y-%%m-%%d %%H:%%M:%%f', 'now', %s) || '000', '.000000', '')
WHERE ("convmemory_summary"."session_id" = %s AND "convmemory_summary"."invalidated_at" IS NULL
    AND "convmemory_summary"."last_position" >= %s);

-- fork (12 of 14)
-- redact (18 of 28)
-- redact (27 of 28)
-- truncate (9 of 10)
SELECT "convmemory_summary"."id", "convmemory_summary"."session_id", "convmemory_summary"."version",
    "convmemory_summary"."parent_version", "convmemory_summary"."first_position",
    "convmemory_summary"."last_position", "convmemory_summary"."covered_count",
    "convmemory_summary"."covered_tokens", "convmemory_summary"."text", "convmemory_summary"."tokens",
    "convmemory_summary"."model", "convmemory_summary"."shortened", "convmemory_summary"."fallback",
    "convmemory_summary"."building", "convmemory_summary"."prompt_hash",
    "convmemory_summary"."invalidated_at", "convmemory_summary"."created_at"
FROM "convmemory_summary"
WHERE ("convmemory_summary"."session_id" = %s AND "convmemory_summary"."invalidated_at" IS NULL
    AND NOT "convmemory_summary"."building")
ORDER BY "convmemory_summary"."version" DESC LIMIT 1;

-- fork (13 of 14)
UPDATE "convmemory_session"
SET "last_position" = %s,
    "unpinned_count" = %s,
    "unpinned_tokens" = %s,
    "settled_tokens" = %s,
    "newest_position" = %s,
    "pinned" = %s,
    "call_position" = %s,
    "exchange_calls" = %s,
    "open_calls" = %s,
    "covered_position" = %s,
    "covered_count" = %s,
    "covered_tokens" = %s,
    "pinned_count" = %s,
    "pinned_tokens" = %s,
    "current_version" = %s,
    "due_since" = NULL,
    "hinted_at" = NULL
WHERE "convmemory_session"."id" = %s;

-- redact (1 of 28)
UPDATE "convmemory_session"
SET "revision" = "convmemory_session"."revision"
WHERE ("convmemory_session"."name_hash" = %s AND "convmemory_session"."last_position" >= %s);

-- redact (2 of 28)
SELECT "convmemory_session"."id" AS "pk"
FROM "convmemory_session"
WHERE "convmemory_session"."name_hash" = %s LIMIT 21;

-- redact (3 of 28)
-- redact (4 of 28)
-- redact (5 of 28)
-- redact (6 of 28)
-- redact (8 of 28)
-- redact (9 of 28)
SELECT "convmemory_session"."id" AS "pk"
FROM "convmemory_session"
WHERE ("convmemory_session"."fork_position" >= %s AND "convmemory_session"."forked_from_id" IN (%s));

-- redact (7 of 28)
SELECT "convmemory_message"."session_id", "convmemory_message"."position", "convmemory_message"."role",
    "convmemory_message"."kind", "convmemory_message"."content", "convmemory_message"."wire",
    "convmemory_message"."metadata", "convmemory_message"."usage", "convmemory_message"."tokens",
    "convmemory_message"."tokens_through", "convmemory_message"."answers", "convmemory_message"."created_at",
    "convmemory_message"."redacted_at", "convmemory_message"."idempotency_key",
    "convmemory_message"."payload_hash"
FROM "convmemory_message"
WHERE ("convmemory_message"."position" = %s AND "convmemory_message"."session_id" = %s) LIMIT 21;

-- redact (10 of 28)
SELECT "convmemory_message"."session_id", "convmemory_message"."position", "convmemory_message"."role",
    "convmemory_message"."kind", "convmemory_message"."content", "convmemory_message"."wire",
    "convmemory_message"."metadata", "convmemory_message"."usage", "convmemory_message"."tokens",
    "convmemory_message"."tokens_through", "convmemory_message"."answers", "convmemory_message"."created_at",
    "convmemory_message"."redacted_at", "convmemory_message"."idempotency_key",
    "convmemory_message"."payload_hash"
FROM "convmemory_message"
WHERE ("convmemory_message"."position" = %s AND "convmemory_message"."session_id" IN (%s))
ORDER BY "convmemory_message"."session_id" ASC;

-- redact (11 of 28)
-- redact (20 of 28)
UPDATE "convmemory_session"
SET "due_since" = NULL,
    "hinted_at" = NULL,
    "attempts" = %s,
    "next_attempt_at" = NULL,
    "lease_token" = %s,
    "lease_expires_at" = NULL,
    "last_error" = %s,
    "epoch" = ("convmemory_session"."epoch" + %s),
    "revision" = ("convmemory_session"."revision" + %s),
    "updated_at" = REPLACE(STRFTIME('%%Y-%%m-%%d %%H:%%M:%%f', 'now', %s) || '000', '.000000', '')
WHERE "convmemory_session"."id" = %s;

-- redact (12 of 28)
-- redact (21 of 28)
SELECT "convmemory_message"."session_id", "convmemory_message"."position", "convmemory_message"."role",
    "convmemory_message"."kind", "convmemory_message"."content", "convmemory_message"."wire",
    "convmemory_message"."metadata", "convmemory_message"."usage", "convmemory_message"."tokens",
    "convmemory_message"."tokens_through", "convmemory_message"."answers", "convmemory_message"."created_at",
    "convmemory_message"."redacted_at", "convmemory_message"."idempotency_key",
    "convmemory_message"."payload_hash"
FROM "convmemory_message"
WHERE ("convmemory_message"."session_id" = %s AND "convmemory_message"."position" = %s) LIMIT 21;

-- redact (13 of 28)
-- redact (22 of 28)
UPDATE "convmemory_message"
SET "content" = %s,
    "wire" = NULL,
    "metadata" = NULL,
    "redacted_at" = COALESCE("convmemory_message"."redacted_at", REPLACE(STRFTIME('%%Y-%%m-%%d %%H:%%M:%%f',
        'now', %s) || '000', '.000000', ''))
WHERE ("convmemory_message"."session_id" = %s AND "convmemory_message"."position" = %s);

-- redact (14 of 28)
-- redact (23 of 28)
SELECT "convmemory_message"."position" AS "position", "convmemory_message"."payload_hash" AS "payload_hash"
FROM "convmemory_message"
WHERE ("convmemory_message"."session_id" = %s AND "convmemory_message"."idempotency_key" IS NOT NULL
    AND "convmemory_message"."position" <= %s)
ORDER BY 1 DESC LIMIT 1;

-- redact (15 of 28)
-- redact (24 of 28)
UPDATE "convmemory_summary"
SET "text" = %s
WHERE ("convmemory_summary"."last_position" >= %s AND "convmemory_summary"."session_id" = %s);

-- redact (19 of 28)
-- redact (28 of 28)
-- truncate (10 of 10)
UPDATE "convmemory_session"
SET "last_position" = %s,
    "unpinned_count" = %s,
    "unpinned_tokens" = %s,
    "settled_tokens" = %s,
    "newest_position" = %s,
    "pinned" = %s,
    "call_position" = %s,
    "exchange_calls" = %s,
    "open_calls" = %s,
    "covered_position" = %s,
    "covered_count" = %s,
    "covered_tokens" = %s,
    "pinned_count" = %s,
    "pinned_tokens" = %s,
    "current_version" = %s,
    "due_since" = REPLACE(STRFTIME('%%Y-%%m-%%d %%H:%%M:%%f', 'now', %s) || '000', '.000000', ''),
    "hinted_at" = REPLACE(STRFTIME('%%Y-%%m-%%d %%H:%%M:%%f', 'now', %s) || '000', '.000000', '')
WHERE "convmemory_session"."id" = %s;

-- truncate (1 of 10)
UPDATE "convmemory_session"
SET "due_since" = NULL,
    "hinted_at" = NULL,
    "attempts" = %s,
    "next_attempt_at" = NULL,
    "lease_token" = %s,
    "lease_expires_at" = NULL,
    "last_error" = %s,
    "epoch" = ("convmemory_session"."epoch" + %s),
    "revision" = ("convmemory_session"."revision" + %s),
    "updated_at" = REPLACE(STRFTIME('%%Y-%%m-%%d %%H:%%M:%%f', 'now', %s) || '000', '.000000', '')
WHERE ("convmemory_session"."name_hash" = %s AND "convmemory_session"."last_position" > %s);

-- truncate (6 of 10)
DELETE
FROM "convmemory_message"
WHERE ("convmemory_message"."position" > %s AND "convmemory_message"."session_id" = %s);

-- truncate (7 of 10)
UPDATE "convmemory_summary"
SET "text" = %s
WHERE ("convmemory_summary"."last_position" > %s AND "convmemory_summary"."session_id" = %s);

-- clear (1 of 4)
UPDATE "convmemory_session"
SET "last_position" = %s,
    "unpinned_count" = %s,
    "unpinned_tokens" = %s,
    "settled_tokens" = %s,
    "newest_position" = %s,
    "pinned" = %s,
    "call_position" = %s,
    "exchange_calls" = %s,
    "open_calls" = %s,
    "covered_position" = %s,
    "covered_count" = %s,
    "covered_tokens" = %s,
    "pinned_count" = %s,
    "pinned_tokens" = %s,
    "due_since" = NULL,
    "hinted_at" = NULL,
    "attempts" = %s,
    "next_attempt_at" = NULL,
    "lease_token" = %s,
    "lease_expires_at" = NULL,
    "last_error" = %s,
    "answered_position" = %s,
    "current_version" = %s,
    "epoch" = ("convmemory_session"."epoch" + %s),
    "revision" = ("convmemory_session"."revision" + %s),
    "updated_at" = REPLACE(STRFTIME('%%Y-%%m-%%d %%H:%%M:%%f', 'now', %s) || '000', '.000000', '')
WHERE "convmemory_session"."name_hash" = %s;

-- clear (3 of 4)
DELETE
FROM "convmemory_message"
WHERE "convmemory_message"."session_id" = %s;

-- clear (4 of 4)
DELETE
FROM "convmemory_summary"
WHERE "convmemory_summary"."session_id" = %s;

-- adopt (1 of 5)
UPDATE "convmemory_session"
SET "revision" = ("convmemory_session"."revision" + %s)
WHERE ("convmemory_session"."alias" = %s AND "convmemory_session"."visitor" = %s);

-- adopt (2 of 5)
SELECT %s AS "a"
FROM "auth_user"
WHERE "auth_user"."id" = %s LIMIT 1;

-- adopt (3 of 5)
SELECT "convmemory_session"."id" AS "pk", "convmemory_session"."key" AS "key"
FROM "convmemory_session"
WHERE ("convmemory_session"."alias" = %s AND "convmemory_session"."visitor" = %s)
ORDER BY 1 ASC;

-- adopt (5 of 5)
UPDATE "convmemory_session"
SET "name_hash" = %s,
    "key" = %s,
    "owner_id" = %s,
    "visitor" = %s,
    "updated_at" = REPLACE(STRFTIME('%%Y-%%m-%%d %%H:%%M:%%f', 'now', %s) || '000', '.000000', '')
WHERE "convmemory_session"."id" = %s;

-- erase (1 of 11)
UPDATE "convmemory_session"
SET "epoch" = ("convmemory_session"."epoch" + %s)
WHERE ("convmemory_session"."alias" = %s AND "convmemory_session"."owner_id" = %s
    AND "convmemory_session"."visitor" = %s);

-- erase (2 of 11)
SELECT "convmemory_session"."id" AS "pk"
FROM "convmemory_session"
WHERE ("convmemory_session"."alias" = %s AND "convmemory_session"."owner_id" = %s
    AND "convmemory_session"."visitor" = %s)
ORDER BY 1 ASC;

-- erase (3 of 11)
UPDATE "convmemory_session"
SET "epoch" = ("convmemory_session"."epoch" + %s)
WHERE "convmemory_session"."id" IN (%s);

-- erase (4 of 11)
SELECT "convmemory_session"."id", "convmemory_session"."public_id", "convmemory_session"."alias",
    "convmemory_session"."owner_id", "convmemory_session"."visitor", "convmemory_session"."key",
    "convmemory_session"."name_hash", "convmemory_session"."title", "convmemory_session"."metadata",
    "convmemory_session"."last_position", "convmemory_session"."unpinned_count",
    "convmemory_session"."unpinned_tokens", "convmemory_session"."settled_tokens",
    "convmemory_session"."newest_position", "convmemory_session"."pinned",
    "convmemory_session"."pinned_count", "convmemory_session"."pinned_tokens",
    "convmemory_session"."call_position", "convmemory_session"."answered_position",
    "convmemory_session"."exchange_calls", "convmemory_session"."open_calls",
    "convmemory_session"."last_version", "convmemory_session"."current_version",
    "convmemory_session"."covered_position", "convmemory_session"."covered_count",
    "convmemory_session"."covered_tokens", "convmemory_session"."due_since",
    "convmemory_session"."due_revision", "convmemory_session"."hinted_at", "convmemory_session"."attempts",
    "convmemory_session"."next_attempt_at", "convmemory_session"."lease_token",
    "convmemory_session"."lease_expires_at", "convmemory_session"."last_error", "convmemory_session"."epoch",
    "convmemory_session"."revision", "convmemory_session"."forked_from_id",
    "convmemory_session"."fork_position", "convmemory_session"."counter", "convmemory_session"."created_at",
    "convmemory_session"."updated_at"
FROM "convmemory_session"
WHERE "convmemory_session"."id" IN (%s);

-- erase (5 of 11)
UPDATE "convmemory_session"
SET "epoch" = ("convmemory_session"."epoch" + %s)
WHERE "convmemory_session"."id" = %s;

-- erase (6 of 11)
SELECT "convmemory_session"."forked_from_id" AS "forked_from"
FROM "convmemory_session"
WHERE "convmemory_session"."id" = %s;
