-- Django 5.2

-- find
SELECT `convmemory_session`.`id` AS `pk`
FROM `convmemory_session`
WHERE `convmemory_session`.`name_hash` = (%s);

-- create (1 of 2)
-- fork (5 of 18)
INSERT INTO `convmemory_session` (`public_id`, `alias`, `owner_id`, `visitor`, `key`, `name_hash`, `title`,
    `metadata`, `archived_at`, `starred_at`, `creation_key`, `creation_hash`, `last_position`,
    `unpinned_count`, `unpinned_tokens`, `settled_tokens`, `newest_position`, `pinned`, `pinned_count`,
    `pinned_tokens`, `call_position`, `answered_position`, `exchange_calls`, `open_calls`, `last_version`,
    `current_version`, `covered_position`, `covered_count`, `covered_tokens`, `indexed_position`, `due_since`,
    `due_revision`, `queued_at`, `attempts`, `next_attempt_at`, `lease_token`, `lease_expires_at`,
    `last_error`, `rebuild_after`, `fold_window`, `turn_token`, `turn_expires_at`, `turn_question`,
    `turn_stopped`, `epoch`, `revision`, `details`, `forked_from_id`, `fork_position`, `counter`,
    `created_at`, `updated_at`)
VALUES (%s, %s, %s, %s, %s, %s, %s, %s, %s, %s, %s, %s, %s, %s, %s, %s, %s, %s, %s, %s, %s, %s, %s, %s, %s,
    %s, %s, %s, %s, %s, %s, %s, %s, %s, %s, %s, %s, %s, %s, %s, %s, %s, %s, %s, %s, %s, %s, %s, %s, %s,
    UTC_TIMESTAMP(6), UTC_TIMESTAMP(6))
RETURNING `convmemory_session`.`id`, `convmemory_session`.`indexed_position`;

-- create (2 of 2)
-- fork (6 of 18)
SELECT `convmemory_session`.`id`, `convmemory_session`.`public_id`, `convmemory_session`.`alias`,
    `convmemory_session`.`owner_id`, `convmemory_session`.`visitor`, `convmemory_session`.`key`,
    `convmemory_session`.`name_hash`, `convmemory_session`.`title`, `convmemory_session`.`metadata`,
    `convmemory_session`.`archived_at`, `convmemory_session`.`starred_at`,
    `convmemory_session`.`creation_key`, `convmemory_session`.`creation_hash`,
    `convmemory_session`.`last_position`, `convmemory_session`.`unpinned_count`,
    `convmemory_session`.`unpinned_tokens`, `convmemory_session`.`settled_tokens`,
    `convmemory_session`.`newest_position`, `convmemory_session`.`pinned`,
    `convmemory_session`.`pinned_count`, `convmemory_session`.`pinned_tokens`,
    `convmemory_session`.`call_position`, `convmemory_session`.`answered_position`,
    `convmemory_session`.`exchange_calls`, `convmemory_session`.`open_calls`,
    `convmemory_session`.`last_version`, `convmemory_session`.`current_version`,
    `convmemory_session`.`covered_position`, `convmemory_session`.`covered_count`,
    `convmemory_session`.`covered_tokens`, `convmemory_session`.`indexed_position`,
    `convmemory_session`.`due_since`, `convmemory_session`.`due_revision`, `convmemory_session`.`queued_at`,
    `convmemory_session`.`attempts`, `convmemory_session`.`next_attempt_at`,
    `convmemory_session`.`lease_token`, `convmemory_session`.`lease_expires_at`,
    `convmemory_session`.`last_error`, `convmemory_session`.`rebuild_after`,
    `convmemory_session`.`fold_window`, `convmemory_session`.`turn_token`,
    `convmemory_session`.`turn_expires_at`, `convmemory_session`.`turn_question`,
    `convmemory_session`.`turn_stopped`, `convmemory_session`.`epoch`, `convmemory_session`.`revision`,
    `convmemory_session`.`details`, `convmemory_session`.`forked_from_id`,
    `convmemory_session`.`fork_position`, `convmemory_session`.`counter`, `convmemory_session`.`created_at`,
    `convmemory_session`.`updated_at`, UTC_TIMESTAMP(6) AS `now`, (
    SELECT U0.`reason` AS `reason`
    FROM `convmemory_aliasstate` U0
    WHERE (NOT (U0.`reason` = %s)
        AND (U0.`paused_until` > (UTC_TIMESTAMP(6))
            OR U0.`reason` IN (%s, %s))
        AND U0.`alias` = (`convmemory_session`.`alias`))) AS `pause`, `auth_user`.`id`,
            `auth_user`.`password`, `auth_user`.`last_login`, `auth_user`.`is_superuser`,
            `auth_user`.`username`, `auth_user`.`first_name`, `auth_user`.`last_name`, `auth_user`.`email`,
            `auth_user`.`is_staff`, `auth_user`.`is_active`, `auth_user`.`date_joined`
FROM `convmemory_session` LEFT OUTER JOIN `auth_user` ON (`convmemory_session`.`owner_id` = `auth_user`.`id`)
WHERE `convmemory_session`.`id` = %s LIMIT 21;

-- update
UPDATE `convmemory_session`
SET `title` = %s, `updated_at` = UTC_TIMESTAMP(6), `details` = (`convmemory_session`.`details` + %s)
WHERE (`convmemory_session`.`name_hash` = %s
    AND `convmemory_session`.`revision` = %s);

-- delete (1 of 11)
UPDATE `convmemory_session`
SET `epoch` = (`convmemory_session`.`epoch` + %s)
WHERE (`convmemory_session`.`name_hash` = %s
    AND `convmemory_session`.`revision` = %s);

-- delete (2 of 11)
-- fork (3 of 18)
-- truncate (2 of 16)
-- clear (2 of 8)
SELECT `convmemory_session`.`id`, `convmemory_session`.`public_id`, `convmemory_session`.`alias`,
    `convmemory_session`.`owner_id`, `convmemory_session`.`visitor`, `convmemory_session`.`key`,
    `convmemory_session`.`name_hash`, `convmemory_session`.`title`, `convmemory_session`.`metadata`,
    `convmemory_session`.`archived_at`, `convmemory_session`.`starred_at`,
    `convmemory_session`.`creation_key`, `convmemory_session`.`creation_hash`,
    `convmemory_session`.`last_position`, `convmemory_session`.`unpinned_count`,
    `convmemory_session`.`unpinned_tokens`, `convmemory_session`.`settled_tokens`,
    `convmemory_session`.`newest_position`, `convmemory_session`.`pinned`,
    `convmemory_session`.`pinned_count`, `convmemory_session`.`pinned_tokens`,
    `convmemory_session`.`call_position`, `convmemory_session`.`answered_position`,
    `convmemory_session`.`exchange_calls`, `convmemory_session`.`open_calls`,
    `convmemory_session`.`last_version`, `convmemory_session`.`current_version`,
    `convmemory_session`.`covered_position`, `convmemory_session`.`covered_count`,
    `convmemory_session`.`covered_tokens`, `convmemory_session`.`indexed_position`,
    `convmemory_session`.`due_since`, `convmemory_session`.`due_revision`, `convmemory_session`.`queued_at`,
    `convmemory_session`.`attempts`, `convmemory_session`.`next_attempt_at`,
    `convmemory_session`.`lease_token`, `convmemory_session`.`lease_expires_at`,
    `convmemory_session`.`last_error`, `convmemory_session`.`rebuild_after`,
    `convmemory_session`.`fold_window`, `convmemory_session`.`turn_token`,
    `convmemory_session`.`turn_expires_at`, `convmemory_session`.`turn_question`,
    `convmemory_session`.`turn_stopped`, `convmemory_session`.`epoch`, `convmemory_session`.`revision`,
    `convmemory_session`.`details`, `convmemory_session`.`forked_from_id`,
    `convmemory_session`.`fork_position`, `convmemory_session`.`counter`, `convmemory_session`.`created_at`,
    `convmemory_session`.`updated_at`
FROM `convmemory_session`
WHERE `convmemory_session`.`name_hash` = %s LIMIT 21 FOR UPDATE;

-- delete (3 of 11)
-- erase (7 of 15)
UPDATE `convmemory_session`
SET `forked_from_id` = NULL
WHERE `convmemory_session`.`forked_from_id` = %s;

-- delete (4 of 11)
-- truncate (11 of 16)
-- clear (7 of 8)
-- erase (8 of 15)
DELETE
FROM `convmemory_embeddings_vector`
WHERE (`convmemory_embeddings_vector`.`session_id` = %s
    AND `convmemory_embeddings_vector`.`position` >= %s);

-- delete (5 of 11)
-- erase (9 of 15)
DELETE
FROM `convmemory_message`
WHERE `convmemory_message`.`session_id` IN (%s);

-- delete (6 of 11)
-- erase (10 of 15)
DELETE
FROM `convmemory_usedkey`
WHERE `convmemory_usedkey`.`session_id` IN (%s);

-- delete (7 of 11)
-- erase (11 of 15)
DELETE
FROM `convmemory_segment`
WHERE `convmemory_segment`.`session_id` IN (%s);

-- delete (8 of 11)
-- erase (12 of 15)
DELETE
FROM `convmemory_summary`
WHERE `convmemory_summary`.`session_id` IN (%s);

-- delete (9 of 11)
-- erase (13 of 15)
DELETE
FROM `convmemory_embeddings_vector`
WHERE `convmemory_embeddings_vector`.`session_id` IN (%s);

-- delete (10 of 11)
-- erase (14 of 15)
UPDATE `convmemory_attempt`
SET `session_id` = NULL
WHERE `convmemory_attempt`.`session_id` IN (%s);

-- delete (11 of 11)
-- erase (15 of 15)
DELETE
FROM `convmemory_session`
WHERE `convmemory_session`.`id` IN (%s);

-- history, the last messages
SELECT `convmemory_message`.`position` AS `position`, `convmemory_message`.`created_at` AS `created_at`,
    `convmemory_message`.`tokens` AS `tokens`, `convmemory_message`.`redacted_at` AS `redacted_at`,
    `convmemory_message`.`public_id` AS `public_id`, `convmemory_message`.`reply_to` AS `reply_to`,
    `convmemory_message`.`cut_off` AS `cut_off`, `convmemory_message`.`usage` AS `usage`,
    `convmemory_message`.`role` AS `role`, `convmemory_message`.`kind` AS `kind`,
    `convmemory_message`.`content` AS `content`, `convmemory_message`.`wire` AS `wire`,
    `convmemory_message`.`metadata` AS `metadata`
FROM `convmemory_message`
WHERE (`convmemory_message`.`session_id` = (
        SELECT U0.`id` AS `pk`
        FROM `convmemory_session` U0
        WHERE U0.`name_hash` = %s LIMIT 1)
    AND `convmemory_message`.`position` >= (
        SELECT ((U0.`last_position` + %s) - %s) AS `first`
        FROM `convmemory_session` U0
        WHERE U0.`name_hash` = %s LIMIT 1))
ORDER BY `convmemory_message`.`session_id` DESC, 1 DESC LIMIT 50;

-- history, before a position
SELECT `convmemory_message`.`position` AS `position`, `convmemory_message`.`created_at` AS `created_at`,
    `convmemory_message`.`tokens` AS `tokens`, `convmemory_message`.`redacted_at` AS `redacted_at`,
    `convmemory_message`.`public_id` AS `public_id`, `convmemory_message`.`reply_to` AS `reply_to`,
    `convmemory_message`.`cut_off` AS `cut_off`, `convmemory_message`.`usage` AS `usage`,
    `convmemory_message`.`role` AS `role`, `convmemory_message`.`kind` AS `kind`,
    `convmemory_message`.`content` AS `content`, `convmemory_message`.`wire` AS `wire`,
    `convmemory_message`.`metadata` AS `metadata`
FROM `convmemory_message`
WHERE (`convmemory_message`.`session_id` = (
        SELECT U0.`id` AS `pk`
        FROM `convmemory_session` U0
        WHERE U0.`name_hash` = %s LIMIT 1)
    AND `convmemory_message`.`position` < %s
    AND `convmemory_message`.`position` >= (
        SELECT (LEAST((U0.`last_position` + %s), %s) - %s) AS `first`
        FROM `convmemory_session` U0
        WHERE U0.`name_hash` = %s LIMIT 1))
ORDER BY `convmemory_message`.`session_id` DESC, 1 DESC LIMIT 50;

-- history, after a position
SELECT `convmemory_message`.`position` AS `position`, `convmemory_message`.`created_at` AS `created_at`,
    `convmemory_message`.`tokens` AS `tokens`, `convmemory_message`.`redacted_at` AS `redacted_at`,
    `convmemory_message`.`public_id` AS `public_id`, `convmemory_message`.`reply_to` AS `reply_to`,
    `convmemory_message`.`cut_off` AS `cut_off`, `convmemory_message`.`usage` AS `usage`,
    `convmemory_message`.`role` AS `role`, `convmemory_message`.`kind` AS `kind`,
    `convmemory_message`.`content` AS `content`, `convmemory_message`.`wire` AS `wire`,
    `convmemory_message`.`metadata` AS `metadata`
FROM `convmemory_message`
WHERE (`convmemory_message`.`session_id` = (
        SELECT U0.`id` AS `pk`
        FROM `convmemory_session` U0
        WHERE U0.`name_hash` = %s LIMIT 1)
    AND `convmemory_message`.`position` > %s
    AND `convmemory_message`.`position` <= %s)
ORDER BY `convmemory_message`.`session_id` ASC, 1 ASC LIMIT 50;

-- index, its first segment (1 of 5)
-- index, a longer segment (4 of 7)
-- index, nothing to do
SELECT `convmemory_session`.`epoch` AS `session__epoch`, `convmemory_session`.`indexed_position` AS
    `session__indexed_position`, `convmemory_session`.`last_position` AS `session__last_position`,
    `convmemory_segment`.`first` AS `first`, `convmemory_segment`.`last` AS `last`,
    `convmemory_segment`.`data` AS `data`
FROM `convmemory_segment` INNER JOIN `convmemory_session` ON (`convmemory_segment`.`session_id` =
    `convmemory_session`.`id`)
WHERE `convmemory_segment`.`session_id` = (%s)
ORDER BY `convmemory_segment`.`session_id` DESC, 4 DESC LIMIT 1;

-- index, its first segment (2 of 5)
SELECT `convmemory_session`.`epoch` AS `epoch`, `convmemory_session`.`indexed_position` AS `indexed_position`,
    `convmemory_session`.`last_position` AS `last_position`
FROM `convmemory_session`
WHERE `convmemory_session`.`id` = (%s);

-- index, its first segment (3 of 5)
-- index, a longer segment (5 of 7)
SELECT `convmemory_message`.`position` AS `position`, `convmemory_message`.`created_at` AS `created_at`,
    `convmemory_message`.`redacted_at` AS `redacted_at`, `convmemory_message`.`role` AS `role`,
    `convmemory_message`.`kind` AS `kind`, LEFT(`convmemory_message`.`content`, %s) AS `left`,
    `convmemory_message`.`wire` AS `wire`
FROM `convmemory_message`
WHERE (`convmemory_message`.`session_id` = (%s)
    AND `convmemory_message`.`position` >= (%s)
    AND `convmemory_message`.`position` <= (%s))
ORDER BY `convmemory_message`.`session_id` ASC, 1 ASC;

-- index, its first segment (4 of 5)
-- index, a longer segment (6 of 7)
UPDATE `convmemory_session`
SET `indexed_position` = %s
WHERE (`convmemory_session`.`epoch` = (%s)
    AND `convmemory_session`.`id` = (%s)
    AND `convmemory_session`.`indexed_position` = (%s));

-- index, its first segment (5 of 5)
-- fork (12 of 18)
INSERT INTO `convmemory_segment` (`session_id`, `first`, `last`, `data`)
VALUES (%s, %s, %s, %s);

-- index, a longer segment (1 of 7)
SELECT `convmemory_session`.`id`, `convmemory_session`.`public_id`, `convmemory_session`.`alias`,
    `convmemory_session`.`owner_id`, `convmemory_session`.`visitor`, `convmemory_session`.`key`,
    `convmemory_session`.`name_hash`, `convmemory_session`.`title`, `convmemory_session`.`metadata`,
    `convmemory_session`.`archived_at`, `convmemory_session`.`starred_at`,
    `convmemory_session`.`creation_key`, `convmemory_session`.`creation_hash`,
    `convmemory_session`.`last_position`, `convmemory_session`.`unpinned_count`,
    `convmemory_session`.`unpinned_tokens`, `convmemory_session`.`settled_tokens`,
    `convmemory_session`.`newest_position`, `convmemory_session`.`pinned`,
    `convmemory_session`.`pinned_count`, `convmemory_session`.`pinned_tokens`,
    `convmemory_session`.`call_position`, `convmemory_session`.`answered_position`,
    `convmemory_session`.`exchange_calls`, `convmemory_session`.`open_calls`,
    `convmemory_session`.`last_version`, `convmemory_session`.`current_version`,
    `convmemory_session`.`covered_position`, `convmemory_session`.`covered_count`,
    `convmemory_session`.`covered_tokens`, `convmemory_session`.`indexed_position`,
    `convmemory_session`.`due_since`, `convmemory_session`.`due_revision`, `convmemory_session`.`queued_at`,
    `convmemory_session`.`attempts`, `convmemory_session`.`next_attempt_at`,
    `convmemory_session`.`lease_token`, `convmemory_session`.`lease_expires_at`,
    `convmemory_session`.`last_error`, `convmemory_session`.`rebuild_after`,
    `convmemory_session`.`fold_window`, `convmemory_session`.`turn_token`,
    `convmemory_session`.`turn_expires_at`, `convmemory_session`.`turn_question`,
    `convmemory_session`.`turn_stopped`, `convmemory_session`.`epoch`, `convmemory_session`.`revision`,
    `convmemory_session`.`details`, `convmemory_session`.`forked_from_id`,
    `convmemory_session`.`fork_position`, `convmemory_session`.`counter`, `convmemory_session`.`created_at`,
    `convmemory_session`.`updated_at`
FROM `convmemory_session`
WHERE `convmemory_session`.`name_hash` = %s
ORDER BY `convmemory_session`.`id` ASC LIMIT 1 FOR UPDATE;

-- index, a longer segment (2 of 7)
UPDATE `convmemory_session`
SET `last_position` = %s, `unpinned_count` = %s, `unpinned_tokens` = %s, `settled_tokens` = %s,
    `newest_position` = %s, `answered_position` = %s, `counter` = %s, `revision` = %s, `updated_at` =
    UTC_TIMESTAMP(6)
WHERE `convmemory_session`.`id` = %s;

-- index, a longer segment (3 of 7)
INSERT INTO convmemory_message (session_id, role, kind, content, tokens, tokens_through, position, public_id,
    created_at)
VALUES (%(session_id)s, %(role)s, %(kind)s, %(content)s, %(tokens)s, %(tokens_through)s, %(position)s,
    %(public_id)s, UTC_TIMESTAMP(6));

-- index, a longer segment (7 of 7)
-- redact (20 of 38)
-- redact (33 of 38)
-- truncate (10 of 16)
UPDATE `convmemory_segment`
SET `last` = %s, `data` = %s
WHERE (`convmemory_segment`.`session_id` = (%s)
    AND `convmemory_segment`.`first` = (%s));

-- searchable
(
    SELECT %s AS `value`, `convmemory_message`.`session_id` AS `session_id`, `convmemory_message`.`position`
        AS `position`, `convmemory_message`.`created_at` AS `created_at`, `convmemory_message`.`redacted_at`
        AS `redacted_at`, `convmemory_message`.`role` AS `role`, `convmemory_message`.`kind` AS `kind`,
        LEFT(`convmemory_message`.`content`, %s) AS `left`, LEFT(`convmemory_message`.`wire`, %s) AS `left`,
        CAST(NULL AS signed integer) AS `cast`, CAST(NULL AS signed integer) AS `cast`
    FROM `convmemory_message`
    WHERE (`convmemory_message`.`session_id` = (
            SELECT U0.`id` AS `pk`
            FROM `convmemory_session` U0
            WHERE U0.`name_hash` = %s LIMIT 1)
        AND `convmemory_message`.`position` >= (
            SELECT GREATEST(U0.`indexed_position`, (U0.`last_position` - %s)) AS `after`
            FROM `convmemory_session` U0
            WHERE U0.`name_hash` = %s LIMIT 1)))
UNION ALL (
    SELECT %s AS `value`, `convmemory_segment`.`session_id` AS `session_id`, `convmemory_segment`.`first` AS
        `first`, NULL AS `value`, NULL AS `value`, NULL AS `value`, NULL AS `value`,
        `convmemory_segment`.`data` AS `data`, NULL AS `value`, `convmemory_segment`.`last` AS `last`,
        CAST(NULL AS signed integer) AS `cast`
    FROM `convmemory_segment`
    WHERE `convmemory_segment`.`session_id` = (
        SELECT U0.`id` AS `pk`
        FROM `convmemory_session` U0
        WHERE U0.`name_hash` = %s LIMIT 1))
UNION ALL (
    SELECT %s AS `value`, `convmemory_session`.`id` AS `pk`, `convmemory_session`.`epoch` AS `epoch`, NULL AS
        `value`, NULL AS `value`, NULL AS `value`, NULL AS `value`, NULL AS `value`, NULL AS `value`,
        `convmemory_session`.`indexed_position` AS `indexed_position`, `convmemory_session`.`last_position` AS
        `last_position`
    FROM `convmemory_session`
    WHERE `convmemory_session`.`name_hash` = %s);

-- searchable, before a position
(
    SELECT %s AS `value`, `convmemory_message`.`session_id` AS `session_id`, `convmemory_message`.`position`
        AS `position`, `convmemory_message`.`created_at` AS `created_at`, `convmemory_message`.`redacted_at`
        AS `redacted_at`, `convmemory_message`.`role` AS `role`, `convmemory_message`.`kind` AS `kind`,
        LEFT(`convmemory_message`.`content`, %s) AS `left`, LEFT(`convmemory_message`.`wire`, %s) AS `left`,
        CAST(NULL AS signed integer) AS `cast`, CAST(NULL AS signed integer) AS `cast`
    FROM `convmemory_message`
    WHERE (`convmemory_message`.`session_id` = (
            SELECT U0.`id` AS `pk`
            FROM `convmemory_session` U0
            WHERE (U0.`name_hash` = %s
                AND U0.`epoch` = %s) LIMIT 1)
        AND `convmemory_message`.`position` < %s
        AND `convmemory_message`.`position` >= (
            SELECT GREATEST(U0.`indexed_position`, (LEAST(U0.`last_position`, %s) - %s)) AS `after`
            FROM `convmemory_session` U0
            WHERE (U0.`name_hash` = %s
                AND U0.`epoch` = %s) LIMIT 1)))
UNION ALL (
    SELECT %s AS `value`, `convmemory_segment`.`session_id` AS `session_id`, `convmemory_segment`.`first` AS
        `first`, NULL AS `value`, NULL AS `value`, NULL AS `value`, NULL AS `value`,
        `convmemory_segment`.`data` AS `data`, NULL AS `value`, `convmemory_segment`.`last` AS `last`,
        CAST(NULL AS signed integer) AS `cast`
    FROM `convmemory_segment`
    WHERE (`convmemory_segment`.`session_id` = (
            SELECT U0.`id` AS `pk`
            FROM `convmemory_session` U0
            WHERE (U0.`name_hash` = %s
                AND U0.`epoch` = %s) LIMIT 1)
        AND `convmemory_segment`.`first` < %s))
UNION ALL (
    SELECT %s AS `value`, `convmemory_session`.`id` AS `pk`, `convmemory_session`.`epoch` AS `epoch`, NULL AS
        `value`, NULL AS `value`, NULL AS `value`, NULL AS `value`, NULL AS `value`, NULL AS `value`,
        `convmemory_session`.`indexed_position` AS `indexed_position`, `convmemory_session`.`last_position` AS
        `last_position`
    FROM `convmemory_session`
    WHERE (`convmemory_session`.`name_hash` = %s
        AND `convmemory_session`.`epoch` = %s));

-- searchable_of (1 of 2)
SELECT `convmemory_session`.`id` AS `pk`, `convmemory_session`.`alias` AS `alias`, `convmemory_session`.`key`
    AS `key`, `convmemory_session`.`owner_id` AS `owner_id`, `convmemory_session`.`visitor` AS `visitor`,
    `convmemory_session`.`epoch` AS `epoch`, `convmemory_session`.`indexed_position` AS `indexed_position`,
    `convmemory_session`.`last_position` AS `last_position`
FROM `convmemory_session`
WHERE (`convmemory_session`.`alias` = %s
    AND `convmemory_session`.`owner_id` IS NULL
    AND `convmemory_session`.`visitor` = %s
    AND `convmemory_session`.`last_position` > %s)
ORDER BY `convmemory_session`.`updated_at` DESC, 1 DESC LIMIT 10001;

-- searchable_of (2 of 2)
(
    SELECT %s AS `value`, `convmemory_message`.`session_id` AS `session_id`, `convmemory_message`.`position`
        AS `position`, `convmemory_message`.`created_at` AS `created_at`, `convmemory_message`.`redacted_at`
        AS `redacted_at`, `convmemory_message`.`role` AS `role`, `convmemory_message`.`kind` AS `kind`,
        LEFT(`convmemory_message`.`content`, %s) AS `left`, LEFT(`convmemory_message`.`wire`, %s) AS `left`,
        CAST(NULL AS signed integer) AS `cast`, CAST(NULL AS signed integer) AS `cast`
    FROM `convmemory_message`
    WHERE (`convmemory_message`.`position` >= %s
        AND `convmemory_message`.`session_id` = %s))
UNION ALL (
    SELECT %s AS `value`, `convmemory_segment`.`session_id` AS `session_id`, `convmemory_segment`.`first` AS
        `first`, NULL AS `value`, NULL AS `value`, NULL AS `value`, NULL AS `value`,
        `convmemory_segment`.`data` AS `data`, NULL AS `value`, `convmemory_segment`.`last` AS `last`,
        CAST(NULL AS signed integer) AS `cast`
    FROM `convmemory_segment`
    WHERE `convmemory_segment`.`session_id` IN (%s))
UNION ALL (
    SELECT %s AS `value`, `convmemory_session`.`id` AS `pk`, `convmemory_session`.`epoch` AS `epoch`, NULL AS
        `value`, NULL AS `value`, NULL AS `value`, NULL AS `value`, NULL AS `value`, NULL AS `value`,
        `convmemory_session`.`indexed_position` AS `indexed_position`, `convmemory_session`.`last_position` AS
        `last_position`
    FROM `convmemory_session`
    WHERE `convmemory_session`.`id` IN (%s));

-- messages_at
SELECT `convmemory_message`.`session_id` AS `session_id`, `convmemory_session`.`epoch` AS `session__epoch`,
    `convmemory_message`.`position` AS `position`, `convmemory_message`.`created_at` AS `created_at`,
    `convmemory_message`.`tokens` AS `tokens`, `convmemory_message`.`redacted_at` AS `redacted_at`,
    `convmemory_message`.`public_id` AS `public_id`, `convmemory_message`.`reply_to` AS `reply_to`,
    `convmemory_message`.`cut_off` AS `cut_off`, `convmemory_message`.`usage` AS `expressionwrapper1`,
    `convmemory_message`.`role` AS `role`, `convmemory_message`.`kind` AS `kind`,
    `convmemory_message`.`content` AS `content`, `convmemory_message`.`wire` AS `expressionwrapper2`,
    `convmemory_message`.`metadata` AS `expressionwrapper3`
FROM `convmemory_message` INNER JOIN `convmemory_session` ON (`convmemory_message`.`session_id` =
    `convmemory_session`.`id`)
WHERE (`convmemory_message`.`position` IN (%s, %s)
    AND `convmemory_message`.`session_id` = %s);

-- pause_of
-- change_pause (1 of 6)
-- change_pause (5 of 6)
-- change_pause, nothing to change
SELECT UTC_TIMESTAMP(6) AS `clock1`, `convmemory_aliasstate`.`failures` AS `failures`,
    `convmemory_aliasstate`.`last_session` AS `last_session`, `convmemory_aliasstate`.`since` AS `since`,
    `convmemory_aliasstate`.`paused_until` AS `paused_until`, `convmemory_aliasstate`.`reason` AS `reason`,
    `convmemory_aliasstate`.`error` AS `error`
FROM `convmemory_aliasstate`
WHERE `convmemory_aliasstate`.`alias` = (%s);

-- change_pause (2 of 6)
-- change_pause (6 of 6)
UPDATE `convmemory_aliasstate`
SET `failures` = %s, `last_session` = NULL, `since` = NULL, `paused_until` = NULL, `reason` = %s, `error` = %s
WHERE (`convmemory_aliasstate`.`alias` = %s
    AND `convmemory_aliasstate`.`failures` = %s
    AND `convmemory_aliasstate`.`last_session` IS NULL
    AND `convmemory_aliasstate`.`paused_until` IS NULL
    AND `convmemory_aliasstate`.`reason` = %s
    AND `convmemory_aliasstate`.`since` IS NULL);

-- change_pause (3 of 6)
-- mark_unmarked (2 of 6)
SELECT %s AS `a`
FROM `convmemory_aliasstate`
WHERE `convmemory_aliasstate`.`alias` = %s LIMIT 1;

-- change_pause (4 of 6)
INSERT IGNORE INTO `convmemory_aliasstate` (`alias`, `failures`, `last_session`, `since`, `paused_until`,
    `reason`, `error`, `threshold`, `compared_id`)
VALUES (%s, %s, %s, %s, %s, %s, %s, %s, %s);

-- has_folded_another
SELECT %s AS `a`
FROM `convmemory_attempt`
WHERE (`convmemory_attempt`.`alias` = %s
    AND `convmemory_attempt`.`outcome` = %s
    AND `convmemory_attempt`.`started_at` >= (COALESCE((
                SELECT CASE WHEN (U0.`outcome` = %s) THEN U0.`started_at` ELSE (UTC_TIMESTAMP(6) + INTERVAL %s
                    MICROSECOND) END AS `case1`
                FROM `convmemory_attempt` U0
                WHERE U0.`session_id` = %s
                ORDER BY U0.`id` DESC LIMIT 1), (UTC_TIMESTAMP(6) + INTERVAL %s MICROSECOND)))
    AND NOT (`convmemory_attempt`.`session_id` = %s
        AND `convmemory_attempt`.`session_id` IS NOT NULL)
    AND NOT (EXISTS(
            SELECT %s AS `a`
            FROM `convmemory_summary` U0
            WHERE (U0.`session_id` = (`convmemory_attempt`.`session_id`)
                AND U0.`version` = (`convmemory_attempt`.`version`)
                AND U0.`fallback` = %s) LIMIT 1))) LIMIT 1;

-- mark_unmarked (1 of 6)
-- mark_unmarked, when all are marked
SELECT `convmemory_aliasstate`.`threshold` AS `threshold`, `convmemory_aliasstate`.`compared_id` AS
    `compared_id`
FROM `convmemory_aliasstate`
WHERE `convmemory_aliasstate`.`alias` = %s
ORDER BY `convmemory_aliasstate`.`alias` ASC LIMIT 1;

-- mark_unmarked (3 of 6)
UPDATE `convmemory_aliasstate`
SET `threshold` = %s, `compared_id` = %s
WHERE `convmemory_aliasstate`.`alias` = %s;

-- mark_unmarked (4 of 6)
SELECT `convmemory_session`.`id` AS `pk`
FROM `convmemory_session`
WHERE (`convmemory_session`.`alias` = %s
    AND `convmemory_session`.`id` > %s)
ORDER BY `convmemory_session`.`alias` ASC, 1 ASC LIMIT 10;

-- mark_unmarked (5 of 6)
UPDATE `convmemory_session`
SET `due_since` = UTC_TIMESTAMP(6)
WHERE (`convmemory_session`.`alias` = %s
    AND `convmemory_session`.`id` > %s
    AND `convmemory_session`.`unpinned_tokens` > (`convmemory_session`.`covered_tokens` + %s)
    AND `convmemory_session`.`settled_tokens` > (`convmemory_session`.`covered_tokens`)
    AND `convmemory_session`.`due_since` IS NULL
    AND `convmemory_session`.`id` <= %s);

-- mark_unmarked (6 of 6)
UPDATE `convmemory_aliasstate`
SET `compared_id` = NULL
WHERE `convmemory_aliasstate`.`alias` = %s;

-- waiting
SELECT COUNT(*)
FROM (
    SELECT `convmemory_session`.`id` AS `col1`
    FROM `convmemory_session`
    WHERE (`convmemory_session`.`due_since` IS NOT NULL
        AND (`convmemory_session`.`lease_expires_at` IS NULL
            OR `convmemory_session`.`lease_expires_at` <= (UTC_TIMESTAMP(6)))
        AND (`convmemory_session`.`next_attempt_at` IS NULL
            OR `convmemory_session`.`next_attempt_at` <= (UTC_TIMESTAMP(6)))
        AND `convmemory_session`.`alias` = %s
        AND `convmemory_session`.`queued_at` > (UTC_TIMESTAMP(6) + INTERVAL %s MICROSECOND)
        AND `convmemory_session`.`queued_at` <= (UTC_TIMESTAMP(6) + INTERVAL %s MICROSECOND)
        AND `convmemory_session`.`queued_at` >= (`convmemory_session`.`due_since`)
        AND NOT (`convmemory_session`.`queued_at` < (COALESCE((
                        SELECT U0.`paused_until` AS `paused_until`
                        FROM `convmemory_aliasstate` U0
                        WHERE (U0.`alias` = %s
                            AND U0.`paused_until` <= (UTC_TIMESTAMP(6)))), `convmemory_session`.`queued_at`))
            AND `convmemory_session`.`queued_at` IS NOT NULL)) LIMIT 10) subquery;

-- sweep (1 of 3)
SELECT `convmemory_session`.`id` AS `pk`
FROM `convmemory_session`
WHERE (`convmemory_session`.`due_since` IS NOT NULL
    AND (`convmemory_session`.`lease_expires_at` IS NULL
        OR `convmemory_session`.`lease_expires_at` <= (UTC_TIMESTAMP(6)))
    AND (`convmemory_session`.`queued_at` IS NULL
        OR `convmemory_session`.`queued_at` > (UTC_TIMESTAMP(6) + INTERVAL %s MICROSECOND)
        OR `convmemory_session`.`queued_at` <= (UTC_TIMESTAMP(6))
        OR (`convmemory_session`.`due_since` <= (UTC_TIMESTAMP(6) + INTERVAL %s MICROSECOND)
            AND `convmemory_session`.`queued_at` < (`convmemory_session`.`due_since`))
        OR (`convmemory_session`.`lease_expires_at` > (`convmemory_session`.`queued_at`)
            AND `convmemory_session`.`lease_expires_at` <= (UTC_TIMESTAMP(6)))
        OR `convmemory_session`.`queued_at` < (COALESCE((
                    SELECT U0.`paused_until` AS `paused_until`
                    FROM `convmemory_aliasstate` U0
                    WHERE (U0.`alias` = %s
                        AND U0.`paused_until` <= (UTC_TIMESTAMP(6)))), `convmemory_session`.`queued_at`)))
    AND `convmemory_session`.`alias` = %s
    AND (`convmemory_session`.`next_attempt_at` IS NULL
        OR `convmemory_session`.`next_attempt_at` <= (UTC_TIMESTAMP(6))))
ORDER BY ROW_NUMBER() OVER (PARTITION BY `convmemory_session`.`owner_id`, `convmemory_session`.`visitor`, CASE
    WHEN (`convmemory_session`.`owner_id` IS NULL
        AND `convmemory_session`.`visitor` = %s) THEN `convmemory_session`.`id` ELSE NULL END
    ORDER BY `convmemory_session`.`queued_at` ASC, `convmemory_session`.`due_since`,
        `convmemory_session`.`id`) ASC, `convmemory_session`.`queued_at` ASC, `convmemory_session`.`due_since`
        ASC, 1 ASC LIMIT 30;

-- sweep (2 of 3)
SELECT `convmemory_session`.`id` AS `pk`
FROM `convmemory_session`
WHERE (`convmemory_session`.`due_since` IS NOT NULL
    AND (`convmemory_session`.`lease_expires_at` IS NULL
        OR `convmemory_session`.`lease_expires_at` <= (UTC_TIMESTAMP(6)))
    AND (`convmemory_session`.`queued_at` IS NULL
        OR `convmemory_session`.`queued_at` > (UTC_TIMESTAMP(6) + INTERVAL %s MICROSECOND)
        OR `convmemory_session`.`queued_at` <= (UTC_TIMESTAMP(6))
        OR (`convmemory_session`.`due_since` <= (UTC_TIMESTAMP(6) + INTERVAL %s MICROSECOND)
            AND `convmemory_session`.`queued_at` < (`convmemory_session`.`due_since`))
        OR (`convmemory_session`.`lease_expires_at` > (`convmemory_session`.`queued_at`)
            AND `convmemory_session`.`lease_expires_at` <= (UTC_TIMESTAMP(6)))
        OR `convmemory_session`.`queued_at` < (COALESCE((
                    SELECT U0.`paused_until` AS `paused_until`
                    FROM `convmemory_aliasstate` U0
                    WHERE (U0.`alias` = %s
                        AND U0.`paused_until` <= (UTC_TIMESTAMP(6)))), `convmemory_session`.`queued_at`)))
    AND `convmemory_session`.`alias` = %s
    AND (`convmemory_session`.`next_attempt_at` IS NULL
        OR `convmemory_session`.`next_attempt_at` <= (UTC_TIMESTAMP(6)))
    AND `convmemory_session`.`id` IN (%s, %s)) FOR
UPDATE SKIP LOCKED;

-- sweep (3 of 3)
UPDATE `convmemory_session`
SET `queued_at` = UTC_TIMESTAMP(6)
WHERE `convmemory_session`.`id` IN (%s, %s);

-- sweep, chained (1 of 4)
-- leases (2 of 2)
SELECT `convmemory_session`.`owner_id` AS `owner_id`, `convmemory_session`.`visitor` AS `visitor`,
    `convmemory_session`.`id` AS `pk`, `convmemory_session`.`attempts` AS `attempts`
FROM `convmemory_session`
WHERE (`convmemory_session`.`lease_expires_at` > (UTC_TIMESTAMP(6))
    AND `convmemory_session`.`lease_expires_at` IS NOT NULL);

-- sweep, chained (2 of 4)
SELECT `convmemory_session`.`id` AS `pk`
FROM `convmemory_session`
WHERE (`convmemory_session`.`due_since` IS NOT NULL
    AND (`convmemory_session`.`lease_expires_at` IS NULL
        OR `convmemory_session`.`lease_expires_at` <= (UTC_TIMESTAMP(6)))
    AND (`convmemory_session`.`queued_at` IS NULL
        OR `convmemory_session`.`queued_at` > (UTC_TIMESTAMP(6) + INTERVAL %s MICROSECOND)
        OR `convmemory_session`.`queued_at` <= (UTC_TIMESTAMP(6))
        OR (`convmemory_session`.`due_since` <= (UTC_TIMESTAMP(6) + INTERVAL %s MICROSECOND)
            AND `convmemory_session`.`queued_at` < (`convmemory_session`.`due_since`))
        OR (`convmemory_session`.`lease_expires_at` > (`convmemory_session`.`queued_at`)
            AND `convmemory_session`.`lease_expires_at` <= (UTC_TIMESTAMP(6)))
        OR `convmemory_session`.`queued_at` < (COALESCE((
                    SELECT U0.`paused_until` AS `paused_until`
                    FROM `convmemory_aliasstate` U0
                    WHERE (U0.`alias` = %s
                        AND U0.`paused_until` <= (UTC_TIMESTAMP(6)))), `convmemory_session`.`queued_at`)))
    AND `convmemory_session`.`alias` = %s
    AND (`convmemory_session`.`next_attempt_at` IS NULL
        OR `convmemory_session`.`next_attempt_at` <= (UTC_TIMESTAMP(6))))
ORDER BY `convmemory_session`.`due_since` ASC, 1 ASC LIMIT 21;

-- sweep, chained (3 of 4)
SELECT `convmemory_session`.`id` AS `pk`
FROM `convmemory_session`
WHERE (`convmemory_session`.`due_since` IS NOT NULL
    AND (`convmemory_session`.`lease_expires_at` IS NULL
        OR `convmemory_session`.`lease_expires_at` <= (UTC_TIMESTAMP(6)))
    AND (`convmemory_session`.`queued_at` IS NULL
        OR `convmemory_session`.`queued_at` > (UTC_TIMESTAMP(6) + INTERVAL %s MICROSECOND)
        OR `convmemory_session`.`queued_at` <= (UTC_TIMESTAMP(6))
        OR (`convmemory_session`.`due_since` <= (UTC_TIMESTAMP(6) + INTERVAL %s MICROSECOND)
            AND `convmemory_session`.`queued_at` < (`convmemory_session`.`due_since`))
        OR (`convmemory_session`.`lease_expires_at` > (`convmemory_session`.`queued_at`)
            AND `convmemory_session`.`lease_expires_at` <= (UTC_TIMESTAMP(6)))
        OR `convmemory_session`.`queued_at` < (COALESCE((
                    SELECT U0.`paused_until` AS `paused_until`
                    FROM `convmemory_aliasstate` U0
                    WHERE (U0.`alias` = %s
                        AND U0.`paused_until` <= (UTC_TIMESTAMP(6)))), `convmemory_session`.`queued_at`)))
    AND `convmemory_session`.`alias` = %s
    AND (`convmemory_session`.`next_attempt_at` IS NULL
        OR `convmemory_session`.`next_attempt_at` <= (UTC_TIMESTAMP(6)))
    AND `convmemory_session`.`id` IN (%s)) FOR
UPDATE SKIP LOCKED;

-- sweep, chained (4 of 4)
UPDATE `convmemory_session`
SET `queued_at` = UTC_TIMESTAMP(6)
WHERE `convmemory_session`.`id` IN (%s);

-- scopes
-- leases (1 of 2)
-- others_wait (1 of 2)
SELECT `convmemory_session`.`owner_id` AS `owner_id`, `convmemory_session`.`visitor` AS `visitor`,
    `convmemory_session`.`attempts` AS `attempts`
FROM `convmemory_session`
WHERE `convmemory_session`.`id` = (%s);

-- others_wait (2 of 2)
SELECT `convmemory_session`.`id` AS `pk`
FROM `convmemory_session`
WHERE (`convmemory_session`.`due_since` IS NOT NULL
    AND (`convmemory_session`.`lease_expires_at` IS NULL
        OR `convmemory_session`.`lease_expires_at` <= (UTC_TIMESTAMP(6)))
    AND (`convmemory_session`.`next_attempt_at` IS NULL
        OR `convmemory_session`.`next_attempt_at` <= (UTC_TIMESTAMP(6)))
    AND `convmemory_session`.`alias` IN (%s)
    AND NOT (`convmemory_session`.`id` = (%s))
    AND NOT (`convmemory_session`.`alias` IN (
            SELECT U0.`alias` AS `alias`
            FROM `convmemory_aliasstate` U0
            WHERE (NOT (U0.`reason` = %s)
                AND (U0.`paused_until` > (UTC_TIMESTAMP(6))
                    OR U0.`reason` IN (%s, %s)))))) LIMIT 1;

-- unqueue (1 of 2)
SELECT `convmemory_session`.`id` AS `pk`
FROM `convmemory_session`
WHERE (`convmemory_session`.`due_since` IS NOT NULL
    AND `convmemory_session`.`id` IN (%s)) FOR
UPDATE SKIP LOCKED;

-- unqueue (2 of 2)
UPDATE `convmemory_session`
SET `queued_at` = (`convmemory_session`.`due_since` - INTERVAL %s MICROSECOND)
WHERE `convmemory_session`.`id` IN (%s);

-- sweep_rebuilds
SELECT `convmemory_session`.`id` AS `pk`
FROM `convmemory_session`
WHERE (`convmemory_session`.`alias` = %s
    AND `convmemory_session`.`due_since` IS NULL
    AND `convmemory_session`.`rebuild_after` <= (UTC_TIMESTAMP(6))
    AND (`convmemory_session`.`lease_expires_at` IS NULL
        OR `convmemory_session`.`lease_expires_at` <= (UTC_TIMESTAMP(6))))
ORDER BY `convmemory_session`.`rebuild_after` ASC, 1 ASC LIMIT 30;

-- is_due
-- release (2 of 2)
SELECT `convmemory_session`.`id` AS `pk`
FROM `convmemory_session`
WHERE (`convmemory_session`.`id` = (%s)
    AND `convmemory_session`.`due_since` IS NOT NULL);

-- claim (1 of 2)
UPDATE `convmemory_session`
SET `lease_token` = %s, `lease_expires_at` = (UTC_TIMESTAMP(6) + INTERVAL %s MICROSECOND), `next_attempt_at` =
    CASE WHEN (`convmemory_session`.`attempts` = %s) THEN (UTC_TIMESTAMP(6) + INTERVAL %s MICROSECOND) WHEN
    (`convmemory_session`.`attempts` = %s) THEN (UTC_TIMESTAMP(6) + INTERVAL %s MICROSECOND) WHEN
    (`convmemory_session`.`attempts` = %s) THEN (UTC_TIMESTAMP(6) + INTERVAL %s MICROSECOND) WHEN
    (`convmemory_session`.`attempts` = %s) THEN (UTC_TIMESTAMP(6) + INTERVAL %s MICROSECOND) WHEN
    (`convmemory_session`.`attempts` = %s) THEN (UTC_TIMESTAMP(6) + INTERVAL %s MICROSECOND) WHEN
    (`convmemory_session`.`attempts` = %s) THEN (UTC_TIMESTAMP(6) + INTERVAL %s MICROSECOND) WHEN
    (`convmemory_session`.`attempts` = %s) THEN (UTC_TIMESTAMP(6) + INTERVAL %s MICROSECOND) WHEN
    (`convmemory_session`.`attempts` = %s) THEN (UTC_TIMESTAMP(6) + INTERVAL %s MICROSECOND) WHEN
    (`convmemory_session`.`attempts` = %s) THEN (UTC_TIMESTAMP(6) + INTERVAL %s MICROSECOND) WHEN
    (`convmemory_session`.`attempts` = %s) THEN (UTC_TIMESTAMP(6) + INTERVAL %s MICROSECOND) ELSE
    (UTC_TIMESTAMP(6) + INTERVAL %s MICROSECOND) END, `attempts` = (`convmemory_session`.`attempts` + %s),
    `due_since` = COALESCE(`convmemory_session`.`due_since`, UTC_TIMESTAMP(6))
WHERE (`convmemory_session`.`id` = (%s)
    AND (`convmemory_session`.`due_since` IS NOT NULL
        OR (`convmemory_session`.`unpinned_tokens` > (`convmemory_session`.`covered_tokens` + %s)
            AND `convmemory_session`.`settled_tokens` > (`convmemory_session`.`covered_tokens`)))
    AND (`convmemory_session`.`lease_expires_at` IS NULL
        OR `convmemory_session`.`lease_expires_at` <= (UTC_TIMESTAMP(6)))
    AND (`convmemory_session`.`next_attempt_at` IS NULL
        OR `convmemory_session`.`next_attempt_at` <= (UTC_TIMESTAMP(6))));

-- claim (2 of 2)
-- claim_rebuild (2 of 5)
SELECT `convmemory_session`.`id` AS `id`, `convmemory_session`.`public_id` AS `public_id`,
    `convmemory_session`.`alias` AS `alias`, `convmemory_session`.`owner_id` AS `owner_id`,
    `convmemory_session`.`visitor` AS `visitor`, `convmemory_session`.`key` AS `key`,
    `convmemory_session`.`last_position` AS `last_position`, `convmemory_session`.`unpinned_count` AS
    `unpinned_count`, `convmemory_session`.`unpinned_tokens` AS `unpinned_tokens`,
    `convmemory_session`.`settled_tokens` AS `settled_tokens`, `convmemory_session`.`newest_position` AS
    `newest_position`, `convmemory_session`.`pinned` AS `pinned`, `convmemory_session`.`call_position` AS
    `call_position`, `convmemory_session`.`exchange_calls` AS `exchange_calls`,
    `convmemory_session`.`open_calls` AS `open_calls`, `convmemory_session`.`last_version` AS `last_version`,
    `convmemory_session`.`current_version` AS `current_version`, `convmemory_session`.`covered_position` AS
    `covered_position`, `convmemory_session`.`covered_count` AS `covered_count`,
    `convmemory_session`.`covered_tokens` AS `covered_tokens`, `convmemory_session`.`due_since` AS
    `due_since`, `convmemory_session`.`attempts` AS `attempts`, `convmemory_session`.`lease_token` AS
    `lease_token`, `convmemory_session`.`fold_window` AS `fold_window`, `convmemory_session`.`epoch` AS
    `epoch`, UTC_TIMESTAMP(6) AS `clock1`
FROM `convmemory_session`
WHERE (`convmemory_session`.`lease_token` = (%s)
    AND `convmemory_session`.`id` = (%s));

-- turns
SELECT `convmemory_message`.`position` AS `position`, `convmemory_message`.`tokens` AS `tokens`,
    `convmemory_message`.`answers` AS `answers`, `convmemory_message`.`role` AS `role`
FROM `convmemory_message`
WHERE (`convmemory_message`.`position` > (%s)
    AND `convmemory_message`.`position` <= (%s)
    AND `convmemory_message`.`session_id` = (%s)
    AND NOT (`convmemory_message`.`role` IN (%s, %s)))
ORDER BY 1 ASC;

-- messages
SELECT `convmemory_message`.`position` AS `position`, `convmemory_message`.`role` AS `role`,
    `convmemory_message`.`kind` AS `kind`, `convmemory_message`.`content` AS `content`,
    `convmemory_message`.`wire` AS `wire`, `convmemory_message`.`metadata` AS `metadata`,
    `convmemory_message`.`tokens` AS `tokens`, `convmemory_message`.`answers` AS `answers`,
    `convmemory_message`.`redacted_at` AS `redacted_at`, `convmemory_message`.`created_at` AS `created_at`
FROM `convmemory_message`
WHERE (`convmemory_message`.`position` > (%s)
    AND `convmemory_message`.`position` <= (%s)
    AND `convmemory_message`.`session_id` = (%s)
    AND NOT (`convmemory_message`.`role` IN (%s, %s)))
ORDER BY 1 ASC;

-- extend
UPDATE `convmemory_session`
SET `lease_expires_at` = (UTC_TIMESTAMP(6) + INTERVAL %s MICROSECOND)
WHERE (`convmemory_session`.`lease_token` = (%s)
    AND `convmemory_session`.`id` = (%s)
    AND `convmemory_session`.`epoch` = (%s)
    AND `convmemory_session`.`lease_expires_at` > (UTC_TIMESTAMP(6)));

-- record
INSERT INTO `convmemory_attempt` (`session_id`, `alias`, `first_position`, `last_position`, `started_at`,
    `due_seconds`, `duration_seconds`, `outcome`, `error`, `model`, `prompt_tokens`, `completion_tokens`,
    `cached_tokens`, `cost`, `version`)
VALUES ((
        SELECT `convmemory_session`.`id` AS `pk`
        FROM `convmemory_session`
        WHERE `convmemory_session`.`id` = %s), %s, %s, %s, (UTC_TIMESTAMP(6) + INTERVAL %s MICROSECOND), %s,
            %s, %s, %s, %s, %s, %s, %s, %s, %s);

-- publish (1 of 3)
UPDATE `convmemory_session`
SET `due_since` = CASE WHEN (`convmemory_session`.`unpinned_tokens` > (%s)
    AND `convmemory_session`.`settled_tokens` > (%s)) THEN COALESCE(`convmemory_session`.`due_since`,
        UTC_TIMESTAMP(6)) ELSE NULL END, `current_version` = %s, `covered_position` = %s, `covered_count` =
        %s, `covered_tokens` = %s, `attempts` = %s, `next_attempt_at` = NULL, `last_error` = %s,
        `last_version` = %s, `lease_expires_at` = (UTC_TIMESTAMP(6) + INTERVAL %s MICROSECOND)
WHERE (`convmemory_session`.`lease_token` = (%s)
    AND `convmemory_session`.`id` = (%s)
    AND `convmemory_session`.`epoch` = (%s)
    AND `convmemory_session`.`lease_expires_at` > (UTC_TIMESTAMP(6))
    AND `convmemory_session`.`covered_position` = (%s)
    AND `convmemory_session`.`last_version` = (%s));

-- publish (2 of 3)
INSERT INTO `convmemory_summary` (`session_id`, `version`, `parent_version`, `first_position`,
    `last_position`, `covered_count`, `covered_tokens`, `text`, `tokens`, `model`, `shortened`, `fallback`,
    `stand_in`, `carried`, `cut`, `building`, `part_end`, `prompt_hash`, `identifiers`, `model_length`,
    `invalidated_at`, `created_at`)
VALUES (%s, %s, %s, %s, %s, %s, %s, %s, %s, %s, %s, %s, %s, %s, %s, %s, %s, %s, %s, %s, %s, UTC_TIMESTAMP(6));

-- publish (3 of 3)
INSERT INTO `convmemory_attempt` (`session_id`, `alias`, `first_position`, `last_position`, `started_at`,
    `due_seconds`, `duration_seconds`, `outcome`, `error`, `model`, `prompt_tokens`, `completion_tokens`,
    `cached_tokens`, `cost`, `version`)
VALUES (%s, %s, %s, %s, (UTC_TIMESTAMP(6) + INTERVAL %s MICROSECOND), %s, %s, %s, %s, %s, %s, %s, %s, %s, %s);

-- release (1 of 2)
UPDATE `convmemory_session`
SET `due_since` = CASE WHEN (`convmemory_session`.`unpinned_tokens` > (`convmemory_session`.`covered_tokens` +
    %s)
    AND `convmemory_session`.`settled_tokens` > (`convmemory_session`.`covered_tokens`)) THEN
        COALESCE(`convmemory_session`.`due_since`, UTC_TIMESTAMP(6)) ELSE NULL END, `lease_token` = %s,
        `lease_expires_at` = NULL, `fold_window` = %s, `attempts` = %s, `last_error` = %s, `next_attempt_at` =
        NULL
WHERE (`convmemory_session`.`lease_token` = (%s)
    AND `convmemory_session`.`id` = (%s));

-- claim_rebuild (1 of 5)
UPDATE `convmemory_session`
SET `lease_token` = %s, `lease_expires_at` = (UTC_TIMESTAMP(6) + INTERVAL %s MICROSECOND), `rebuild_after` =
    (UTC_TIMESTAMP(6) + INTERVAL %s MICROSECOND)
WHERE (`convmemory_session`.`current_version` > %s
    AND `convmemory_session`.`id` = %s
    AND (`convmemory_session`.`lease_expires_at` IS NULL
        OR `convmemory_session`.`lease_expires_at` <= (UTC_TIMESTAMP(6))));

-- claim_rebuild (3 of 5)
SELECT `convmemory_summary`.`id` AS `id`, `convmemory_summary`.`session_id` AS `session_id`,
    `convmemory_summary`.`version` AS `version`, `convmemory_summary`.`parent_version` AS `parent_version`,
    `convmemory_summary`.`first_position` AS `first_position`, `convmemory_summary`.`last_position` AS
    `last_position`, `convmemory_summary`.`covered_count` AS `covered_count`,
    `convmemory_summary`.`covered_tokens` AS `covered_tokens`, `convmemory_summary`.`text` AS `text`,
    `convmemory_summary`.`tokens` AS `tokens`, `convmemory_summary`.`model` AS `model`,
    `convmemory_summary`.`shortened` AS `shortened`, `convmemory_summary`.`fallback` AS `fallback`,
    `convmemory_summary`.`stand_in` AS `stand_in`, `convmemory_summary`.`carried` AS `carried`,
    `convmemory_summary`.`cut` AS `cut`, `convmemory_summary`.`building` AS `building`,
    `convmemory_summary`.`part_end` AS `part_end`, `convmemory_summary`.`prompt_hash` AS `prompt_hash`,
    `convmemory_summary`.`identifiers` AS `identifiers`, `convmemory_summary`.`model_length` AS
    `model_length`, `convmemory_summary`.`invalidated_at` AS `invalidated_at`,
    `convmemory_summary`.`created_at` AS `created_at`
FROM `convmemory_summary`
WHERE (`convmemory_summary`.`session_id` = (%s)
    AND ((`convmemory_summary`.`building` = %s
            AND `convmemory_summary`.`first_position` = (%s)
            AND `convmemory_summary`.`invalidated_at` IS NULL
            AND `convmemory_summary`.`part_end` IS NOT NULL)
        OR `convmemory_summary`.`version` = (%s)))
ORDER BY 3 ASC;

-- claim_rebuild (4 of 5)
SELECT `convmemory_summary`.`id`, `convmemory_summary`.`session_id`, `convmemory_summary`.`version`,
    `convmemory_summary`.`parent_version`, `convmemory_summary`.`first_position`,
    `convmemory_summary`.`last_position`, `convmemory_summary`.`covered_count`,
    `convmemory_summary`.`covered_tokens`, `convmemory_summary`.`text`, `convmemory_summary`.`tokens`,
    `convmemory_summary`.`model`, `convmemory_summary`.`shortened`, `convmemory_summary`.`fallback`,
    `convmemory_summary`.`stand_in`, `convmemory_summary`.`carried`, `convmemory_summary`.`cut`,
    `convmemory_summary`.`building`, `convmemory_summary`.`part_end`, `convmemory_summary`.`prompt_hash`,
    `convmemory_summary`.`identifiers`, `convmemory_summary`.`model_length`,
    `convmemory_summary`.`invalidated_at`, `convmemory_summary`.`created_at`
FROM `convmemory_summary`
WHERE (`convmemory_summary`.`session_id` = %s
    AND `convmemory_summary`.`invalidated_at` IS NULL
    AND `convmemory_summary`.`building` = %s)
ORDER BY `convmemory_summary`.`version` ASC;

-- claim_rebuild (5 of 5)
SELECT `convmemory_summary`.`id`, `convmemory_summary`.`session_id`, `convmemory_summary`.`version`,
    `convmemory_summary`.`parent_version`, `convmemory_summary`.`first_position`,
    `convmemory_summary`.`last_position`, `convmemory_summary`.`covered_count`,
    `convmemory_summary`.`covered_tokens`, `convmemory_summary`.`text`, `convmemory_summary`.`tokens`,
    `convmemory_summary`.`model`, `convmemory_summary`.`shortened`, `convmemory_summary`.`fallback`,
    `convmemory_summary`.`stand_in`, `convmemory_summary`.`carried`, `convmemory_summary`.`cut`,
    `convmemory_summary`.`building`, `convmemory_summary`.`part_end`, `convmemory_summary`.`prompt_hash`,
    `convmemory_summary`.`identifiers`, `convmemory_summary`.`model_length`,
    `convmemory_summary`.`invalidated_at`, `convmemory_summary`.`created_at`
FROM `convmemory_summary`
WHERE (`convmemory_summary`.`session_id` = %s
    AND `convmemory_summary`.`invalidated_at` IS NULL
    AND `convmemory_summary`.`building` = %s
    AND `convmemory_summary`.`stand_in` = %s)
ORDER BY `convmemory_summary`.`version` ASC LIMIT 1;

-- fork (1 of 18)
SELECT `convmemory_segment`.`first` AS `first`, `convmemory_segment`.`last` AS `last`,
    `convmemory_segment`.`data` AS `data`, `convmemory_session`.`epoch` AS `session__epoch`
FROM `convmemory_segment` INNER JOIN `convmemory_session` ON (`convmemory_segment`.`session_id` =
    `convmemory_session`.`id`)
WHERE (`convmemory_segment`.`first` <= %s
    AND `convmemory_segment`.`session_id` = (
        SELECT U0.`id` AS `pk`
        FROM `convmemory_session` U0
        WHERE U0.`name_hash` = %s LIMIT 1))
ORDER BY `convmemory_segment`.`session_id` ASC, 1 ASC;

-- fork (2 of 18)
UPDATE `convmemory_session`
SET `revision` = `convmemory_session`.`revision`
WHERE `convmemory_session`.`name_hash` = %s;

-- fork (4 of 18)
-- adopt (4 of 5)
SELECT %s AS `a`
FROM `convmemory_session`
WHERE `convmemory_session`.`name_hash` = %s LIMIT 1 FOR UPDATE;

-- fork (7 of 18)
-- truncate (3 of 16)
SELECT `convmemory_message`.`position` AS `position`, `convmemory_message`.`role` AS `role`,
    `convmemory_message`.`wire` AS `wire`, `convmemory_message`.`tokens` AS `tokens`,
    `convmemory_message`.`answers` AS `answers`, `convmemory_message`.`tokens_through` AS `tokens_through`
FROM `convmemory_message`
WHERE (`convmemory_message`.`position` <= %s
    AND `convmemory_message`.`session_id` = %s
    AND NOT (`convmemory_message`.`role` IN (%s, %s)))
ORDER BY 1 DESC LIMIT 1 FOR UPDATE;

-- fork (8 of 18)
-- truncate (4 of 16)
SELECT `convmemory_message`.`position` AS `position`, `convmemory_message`.`role` AS `role`,
    `convmemory_message`.`wire` AS `wire`, `convmemory_message`.`tokens` AS `tokens`,
    `convmemory_message`.`answers` AS `answers`, `convmemory_message`.`tokens_through` AS `tokens_through`
FROM `convmemory_message`
WHERE (`convmemory_message`.`position` <= %s
    AND `convmemory_message`.`session_id` = %s
    AND `convmemory_message`.`answers` IS NULL
    AND `convmemory_message`.`role` = %s)
ORDER BY 1 DESC LIMIT 1 FOR UPDATE;

-- fork (9 of 18)
-- truncate (5 of 16)
SELECT `convmemory_message`.`position` AS `position`, `convmemory_message`.`role` AS `role`,
    `convmemory_message`.`wire` AS `wire`, `convmemory_message`.`tokens` AS `tokens`,
    `convmemory_message`.`answers` AS `answers`, `convmemory_message`.`tokens_through` AS `tokens_through`
FROM `convmemory_message`
WHERE (`convmemory_message`.`position` <= %s
    AND `convmemory_message`.`session_id` = %s
    AND `convmemory_message`.`answers` = %s
    AND `convmemory_message`.`position` > %s)
ORDER BY 1 ASC FOR UPDATE;

-- fork (10 of 18)
INSERT INTO convmemory_message (session_id, role, kind, content, wire, metadata, format, item, `usage`,
    tokens, tokens_through, position, answers, reply_to, cut_off, public_id, created_at, redacted_at)
SELECT %s, role, kind, content, wire, metadata, format, item, `usage`, tokens, tokens_through, position,
    answers, reply_to, cut_off, public_id, created_at, redacted_at
FROM convmemory_message
WHERE session_id = %s
AND position <= %s;

-- fork (11 of 18)
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

-- fork (13 of 18)
INSERT INTO convmemory_embeddings_vector (session_id, position, model, data)
SELECT %s, position, model, data
FROM convmemory_embeddings_vector
WHERE session_id = %s
AND position BETWEEN %s
AND %s;

-- fork (14 of 18)
-- redact (22 of 38)
-- redact (35 of 38)
-- truncate (13 of 16)
UPDATE `convmemory_summary`
SET `invalidated_at` = UTC_TIMESTAMP(6)
WHERE (`convmemory_summary`.`session_id` = %s
    AND `convmemory_summary`.`invalidated_at` IS NULL
    AND `convmemory_summary`.`last_position` >= %s);

-- fork (15 of 18)
-- redact (23 of 38)
-- redact (36 of 38)
-- truncate (14 of 16)
SELECT `convmemory_summary`.`id`, `convmemory_summary`.`session_id`, `convmemory_summary`.`version`,
    `convmemory_summary`.`parent_version`, `convmemory_summary`.`first_position`,
    `convmemory_summary`.`last_position`, `convmemory_summary`.`covered_count`,
    `convmemory_summary`.`covered_tokens`, `convmemory_summary`.`text`, `convmemory_summary`.`tokens`,
    `convmemory_summary`.`model`, `convmemory_summary`.`shortened`, `convmemory_summary`.`fallback`,
    `convmemory_summary`.`stand_in`, `convmemory_summary`.`carried`, `convmemory_summary`.`cut`,
    `convmemory_summary`.`building`, `convmemory_summary`.`part_end`, `convmemory_summary`.`prompt_hash`,
    `convmemory_summary`.`identifiers`, `convmemory_summary`.`model_length`,
    `convmemory_summary`.`invalidated_at`, `convmemory_summary`.`created_at`
FROM `convmemory_summary`
WHERE (`convmemory_summary`.`session_id` = %s
    AND `convmemory_summary`.`invalidated_at` IS NULL
    AND `convmemory_summary`.`building` = %s)
ORDER BY `convmemory_summary`.`version` DESC LIMIT 1 FOR UPDATE;

-- fork (16 of 18)
-- redact (24 of 38)
-- redact (37 of 38)
-- truncate (15 of 16)
SELECT `convmemory_summary`.`stand_in` AS `stand_in`
FROM `convmemory_summary`
WHERE (`convmemory_summary`.`session_id` = %s
    AND `convmemory_summary`.`invalidated_at` IS NULL
    AND (`convmemory_summary`.`stand_in` = %s
        OR `convmemory_summary`.`building` = %s)) FOR UPDATE;

-- fork (17 of 18)
UPDATE `convmemory_session`
SET `last_position` = %s, `unpinned_count` = %s, `unpinned_tokens` = %s, `settled_tokens` = %s,
    `newest_position` = %s, `pinned` = %s, `call_position` = %s, `exchange_calls` = %s, `open_calls` = %s,
    `covered_position` = %s, `covered_count` = %s, `covered_tokens` = %s, `pinned_count` = %s, `pinned_tokens`
    = %s, `indexed_position` = %s, `current_version` = %s, `due_since` = NULL, `rebuild_after` = NULL
WHERE `convmemory_session`.`id` = %s;

-- fork (18 of 18)
SELECT `convmemory_session`.`id`, `convmemory_session`.`public_id`, `convmemory_session`.`alias`,
    `convmemory_session`.`owner_id`, `convmemory_session`.`visitor`, `convmemory_session`.`key`,
    `convmemory_session`.`name_hash`, `convmemory_session`.`title`, `convmemory_session`.`metadata`,
    `convmemory_session`.`archived_at`, `convmemory_session`.`starred_at`,
    `convmemory_session`.`creation_key`, `convmemory_session`.`creation_hash`,
    `convmemory_session`.`last_position`, `convmemory_session`.`unpinned_count`,
    `convmemory_session`.`unpinned_tokens`, `convmemory_session`.`settled_tokens`,
    `convmemory_session`.`newest_position`, `convmemory_session`.`pinned`,
    `convmemory_session`.`pinned_count`, `convmemory_session`.`pinned_tokens`,
    `convmemory_session`.`call_position`, `convmemory_session`.`answered_position`,
    `convmemory_session`.`exchange_calls`, `convmemory_session`.`open_calls`,
    `convmemory_session`.`last_version`, `convmemory_session`.`current_version`,
    `convmemory_session`.`covered_position`, `convmemory_session`.`covered_count`,
    `convmemory_session`.`covered_tokens`, `convmemory_session`.`indexed_position`,
    `convmemory_session`.`due_since`, `convmemory_session`.`due_revision`, `convmemory_session`.`queued_at`,
    `convmemory_session`.`attempts`, `convmemory_session`.`next_attempt_at`,
    `convmemory_session`.`lease_token`, `convmemory_session`.`lease_expires_at`,
    `convmemory_session`.`last_error`, `convmemory_session`.`rebuild_after`,
    `convmemory_session`.`fold_window`, `convmemory_session`.`turn_token`,
    `convmemory_session`.`turn_expires_at`, `convmemory_session`.`turn_question`,
    `convmemory_session`.`turn_stopped`, `convmemory_session`.`epoch`, `convmemory_session`.`revision`,
    `convmemory_session`.`details`, `convmemory_session`.`forked_from_id`,
    `convmemory_session`.`fork_position`, `convmemory_session`.`counter`, `convmemory_session`.`created_at`,
    `convmemory_session`.`updated_at`
FROM `convmemory_session`
WHERE `convmemory_session`.`id` = %s LIMIT 21;

-- redact (1 of 38)
UPDATE `convmemory_session`
SET `revision` = `convmemory_session`.`revision`
WHERE (`convmemory_session`.`name_hash` = %s
    AND `convmemory_session`.`last_position` >= %s);

-- redact (2 of 38)
SELECT `convmemory_session`.`id` AS `pk`
FROM `convmemory_session`
WHERE `convmemory_session`.`name_hash` = %s LIMIT 21 FOR UPDATE;

-- redact (3 of 38)
-- redact (4 of 38)
-- redact (6 of 38)
-- redact (7 of 38)
-- redact (9 of 38)
-- redact (10 of 38)
SELECT `convmemory_session`.`id` AS `pk`
FROM `convmemory_session`
WHERE (`convmemory_session`.`fork_position` >= %s
    AND `convmemory_session`.`forked_from_id` IN (%s)) FOR UPDATE;

-- redact (5 of 38)
SELECT `convmemory_session`.`id` AS `pk`
FROM `convmemory_session`
WHERE `convmemory_session`.`id` IN (%s)
ORDER BY 1 ASC FOR UPDATE;

-- redact (8 of 38)
SELECT `convmemory_message`.`public_id` AS `public_id`
FROM `convmemory_message`
WHERE (`convmemory_message`.`position` = %s
    AND `convmemory_message`.`session_id` = %s) LIMIT 21 FOR UPDATE;

-- redact (11 of 38)
SELECT `convmemory_message`.`session_id` AS `session_id`
FROM `convmemory_message`
WHERE (`convmemory_message`.`position` = %s
    AND `convmemory_message`.`public_id` = %s
    AND `convmemory_message`.`session_id` IN (%s))
ORDER BY 1 ASC FOR UPDATE;

-- redact (12 of 38)
SELECT %s AS `a`
FROM `convmemory_session`
WHERE (`convmemory_session`.`lease_expires_at` > (UTC_TIMESTAMP(6))
    AND `convmemory_session`.`id` IN (%s, %s)) LIMIT 1 FOR UPDATE;

-- redact (13 of 38)
-- redact (26 of 38)
UPDATE `convmemory_session`
SET `rebuild_after` = CASE WHEN (`convmemory_session`.`lease_expires_at` > (UTC_TIMESTAMP(6))
    AND `convmemory_session`.`rebuild_after` IS NOT NULL) THEN UTC_TIMESTAMP(6) ELSE
        `convmemory_session`.`rebuild_after` END, `due_since` = NULL, `queued_at` = NULL, `attempts` = %s,
        `next_attempt_at` = NULL, `lease_token` = %s, `lease_expires_at` = NULL, `last_error` = %s, `epoch` =
        (`convmemory_session`.`epoch` + %s), `revision` = (`convmemory_session`.`revision` + %s), `updated_at`
        = UTC_TIMESTAMP(6)
WHERE `convmemory_session`.`id` = %s;

-- redact (14 of 38)
-- redact (27 of 38)
SELECT `convmemory_message`.`session_id`, `convmemory_message`.`position`, `convmemory_message`.`public_id`,
    `convmemory_message`.`role`, `convmemory_message`.`kind`, `convmemory_message`.`content`,
    `convmemory_message`.`wire`, `convmemory_message`.`metadata`, `convmemory_message`.`format`,
    `convmemory_message`.`item`, `convmemory_message`.`usage`, `convmemory_message`.`tokens`,
    `convmemory_message`.`tokens_through`, `convmemory_message`.`answers`, `convmemory_message`.`reply_to`,
    `convmemory_message`.`cut_off`, `convmemory_message`.`created_at`, `convmemory_message`.`redacted_at`
FROM `convmemory_message`
WHERE (`convmemory_message`.`session_id` = %s
    AND `convmemory_message`.`position` = %s) LIMIT 21 FOR UPDATE;

-- redact (15 of 38)
-- redact (28 of 38)
UPDATE `convmemory_message`
SET `content` = %s, `wire` = NULL, `metadata` = NULL, `item` = NULL, `redacted_at` =
    COALESCE(`convmemory_message`.`redacted_at`, UTC_TIMESTAMP(6))
WHERE (`convmemory_message`.`session_id` = %s
    AND `convmemory_message`.`position` = %s);

-- redact (16 of 38)
-- redact (29 of 38)
UPDATE `convmemory_usedkey`
SET `content` = %s
WHERE (`convmemory_usedkey`.`session_id` = %s
    AND `convmemory_usedkey`.`first_position` > (%s - `convmemory_usedkey`.`size`)
    AND `convmemory_usedkey`.`first_position` <= %s);

-- redact (17 of 38)
-- redact (30 of 38)
UPDATE `convmemory_summary`
SET `text` = %s, `identifiers` = NULL, `model_length` = NULL
WHERE (`convmemory_summary`.`last_position` >= %s
    AND `convmemory_summary`.`session_id` = %s);

-- redact (18 of 38)
-- redact (31 of 38)
SELECT `convmemory_session`.`id`, `convmemory_session`.`public_id`, `convmemory_session`.`alias`,
    `convmemory_session`.`owner_id`, `convmemory_session`.`visitor`, `convmemory_session`.`key`,
    `convmemory_session`.`name_hash`, `convmemory_session`.`title`, `convmemory_session`.`metadata`,
    `convmemory_session`.`archived_at`, `convmemory_session`.`starred_at`,
    `convmemory_session`.`creation_key`, `convmemory_session`.`creation_hash`,
    `convmemory_session`.`last_position`, `convmemory_session`.`unpinned_count`,
    `convmemory_session`.`unpinned_tokens`, `convmemory_session`.`settled_tokens`,
    `convmemory_session`.`newest_position`, `convmemory_session`.`pinned`,
    `convmemory_session`.`pinned_count`, `convmemory_session`.`pinned_tokens`,
    `convmemory_session`.`call_position`, `convmemory_session`.`answered_position`,
    `convmemory_session`.`exchange_calls`, `convmemory_session`.`open_calls`,
    `convmemory_session`.`last_version`, `convmemory_session`.`current_version`,
    `convmemory_session`.`covered_position`, `convmemory_session`.`covered_count`,
    `convmemory_session`.`covered_tokens`, `convmemory_session`.`indexed_position`,
    `convmemory_session`.`due_since`, `convmemory_session`.`due_revision`, `convmemory_session`.`queued_at`,
    `convmemory_session`.`attempts`, `convmemory_session`.`next_attempt_at`,
    `convmemory_session`.`lease_token`, `convmemory_session`.`lease_expires_at`,
    `convmemory_session`.`last_error`, `convmemory_session`.`rebuild_after`,
    `convmemory_session`.`fold_window`, `convmemory_session`.`turn_token`,
    `convmemory_session`.`turn_expires_at`, `convmemory_session`.`turn_question`,
    `convmemory_session`.`turn_stopped`, `convmemory_session`.`epoch`, `convmemory_session`.`revision`,
    `convmemory_session`.`details`, `convmemory_session`.`forked_from_id`,
    `convmemory_session`.`fork_position`, `convmemory_session`.`counter`, `convmemory_session`.`created_at`,
    `convmemory_session`.`updated_at`
FROM `convmemory_session`
WHERE `convmemory_session`.`id` = %s LIMIT 21 FOR UPDATE;

-- redact (19 of 38)
-- redact (32 of 38)
SELECT `convmemory_segment`.`first` AS `first`, `convmemory_segment`.`last` AS `last`,
    `convmemory_segment`.`data` AS `data`
FROM `convmemory_segment`
WHERE (`convmemory_segment`.`session_id` = %s
    AND `convmemory_segment`.`first` <= %s)
ORDER BY `convmemory_segment`.`session_id` DESC, 1 DESC LIMIT 1 FOR UPDATE;

-- redact (21 of 38)
-- redact (34 of 38)
DELETE
FROM `convmemory_embeddings_vector`
WHERE (`convmemory_embeddings_vector`.`session_id` = %s
    AND `convmemory_embeddings_vector`.`position` >= %s
    AND `convmemory_embeddings_vector`.`position` <= %s);

-- redact (25 of 38)
-- redact (38 of 38)
-- truncate (16 of 16)
UPDATE `convmemory_session`
SET `last_position` = %s, `unpinned_count` = %s, `unpinned_tokens` = %s, `settled_tokens` = %s,
    `newest_position` = %s, `pinned` = %s, `call_position` = %s, `exchange_calls` = %s, `open_calls` = %s,
    `covered_position` = %s, `covered_count` = %s, `covered_tokens` = %s, `pinned_count` = %s, `pinned_tokens`
    = %s, `indexed_position` = %s, `current_version` = %s, `due_since` = UTC_TIMESTAMP(6), `rebuild_after` =
    NULL
WHERE `convmemory_session`.`id` = %s;

-- truncate (1 of 16)
UPDATE `convmemory_session`
SET `rebuild_after` = CASE WHEN (`convmemory_session`.`lease_expires_at` > (UTC_TIMESTAMP(6))
    AND `convmemory_session`.`rebuild_after` IS NOT NULL) THEN UTC_TIMESTAMP(6) ELSE
        `convmemory_session`.`rebuild_after` END, `due_since` = NULL, `queued_at` = NULL, `attempts` = %s,
        `next_attempt_at` = NULL, `lease_token` = %s, `lease_expires_at` = NULL, `last_error` = %s, `epoch` =
        (`convmemory_session`.`epoch` + %s), `revision` = (`convmemory_session`.`revision` + %s), `updated_at`
        = UTC_TIMESTAMP(6)
WHERE (`convmemory_session`.`name_hash` = %s
    AND `convmemory_session`.`last_position` > %s);

-- truncate (6 of 16)
DELETE
FROM `convmemory_message`
WHERE (`convmemory_message`.`position` > %s
    AND `convmemory_message`.`session_id` = %s);

-- truncate (7 of 16)
UPDATE `convmemory_summary`
SET `text` = %s, `identifiers` = NULL, `model_length` = NULL
WHERE (`convmemory_summary`.`last_position` > %s
    AND `convmemory_summary`.`session_id` = %s);

-- truncate (8 of 16)
DELETE
FROM `convmemory_segment`
WHERE (`convmemory_segment`.`session_id` = %s
    AND `convmemory_segment`.`first` > %s);

-- truncate (9 of 16)
SELECT `convmemory_segment`.`first` AS `first`, `convmemory_segment`.`last` AS `last`,
    `convmemory_segment`.`data` AS `data`
FROM `convmemory_segment`
WHERE `convmemory_segment`.`session_id` = %s
ORDER BY `convmemory_segment`.`session_id` DESC, 1 DESC LIMIT 1 FOR UPDATE;

-- truncate (12 of 16)
-- clear (8 of 8)
UPDATE `convmemory_usedkey`
SET `gone_at` = UTC_TIMESTAMP(6)
WHERE (`convmemory_usedkey`.`gone_at` IS NULL
    AND `convmemory_usedkey`.`session_id` = %s
    AND `convmemory_usedkey`.`first_position` > (%s - `convmemory_usedkey`.`size`));

-- clear (1 of 8)
UPDATE `convmemory_session`
SET `rebuild_after` = CASE WHEN (`convmemory_session`.`lease_expires_at` > (UTC_TIMESTAMP(6))
    AND `convmemory_session`.`rebuild_after` IS NOT NULL) THEN UTC_TIMESTAMP(6) ELSE
        `convmemory_session`.`rebuild_after` END, `due_since` = NULL, `queued_at` = NULL, `attempts` = %s,
        `next_attempt_at` = NULL, `lease_token` = %s, `lease_expires_at` = NULL, `last_error` = %s, `epoch` =
        (`convmemory_session`.`epoch` + %s), `revision` = (`convmemory_session`.`revision` + %s), `updated_at`
        = UTC_TIMESTAMP(6)
WHERE `convmemory_session`.`name_hash` = %s;

-- clear (3 of 8)
UPDATE `convmemory_session`
SET `last_position` = %s, `unpinned_count` = %s, `unpinned_tokens` = %s, `settled_tokens` = %s,
    `newest_position` = %s, `pinned` = %s, `call_position` = %s, `exchange_calls` = %s, `open_calls` = %s,
    `covered_position` = %s, `covered_count` = %s, `covered_tokens` = %s, `pinned_count` = %s, `pinned_tokens`
    = %s, `rebuild_after` = NULL, `answered_position` = %s, `current_version` = %s, `indexed_position` = %s
WHERE `convmemory_session`.`id` = %s;

-- clear (4 of 8)
DELETE
FROM `convmemory_message`
WHERE `convmemory_message`.`session_id` = %s;

-- clear (5 of 8)
DELETE
FROM `convmemory_summary`
WHERE `convmemory_summary`.`session_id` = %s;

-- clear (6 of 8)
DELETE
FROM `convmemory_segment`
WHERE `convmemory_segment`.`session_id` = %s;

-- adopt (1 of 5)
UPDATE `convmemory_session`
SET `details` = (`convmemory_session`.`details` + %s)
WHERE (`convmemory_session`.`alias` = %s
    AND `convmemory_session`.`visitor` = %s);

-- adopt (2 of 5)
SELECT %s AS `a`
FROM `auth_user`
WHERE `auth_user`.`id` = %s LIMIT 1;

-- adopt (3 of 5)
SELECT `convmemory_session`.`id` AS `pk`, `convmemory_session`.`key` AS `key`
FROM `convmemory_session`
WHERE (`convmemory_session`.`alias` = %s
    AND `convmemory_session`.`visitor` = %s)
ORDER BY 1 ASC FOR UPDATE;

-- adopt (5 of 5)
UPDATE `convmemory_session`
SET `name_hash` = %s, `key` = %s, `owner_id` = %s, `visitor` = %s, `updated_at` = UTC_TIMESTAMP(6)
WHERE `convmemory_session`.`id` = %s;

-- erase (1 of 15)
UPDATE `convmemory_session`
SET `epoch` = (`convmemory_session`.`epoch` + %s)
WHERE (`convmemory_session`.`alias` = %s
    AND `convmemory_session`.`owner_id` = %s
    AND `convmemory_session`.`visitor` = %s);

-- erase (2 of 15)
SELECT `convmemory_session`.`id` AS `pk`
FROM `convmemory_session`
WHERE (`convmemory_session`.`alias` = %s
    AND `convmemory_session`.`owner_id` = %s
    AND `convmemory_session`.`visitor` = %s)
ORDER BY 1 ASC FOR UPDATE;

-- erase (3 of 15)
UPDATE `convmemory_session`
SET `epoch` = (`convmemory_session`.`epoch` + %s)
WHERE `convmemory_session`.`id` IN (%s);

-- erase (4 of 15)
SELECT `convmemory_session`.`id`, `convmemory_session`.`public_id`, `convmemory_session`.`alias`,
    `convmemory_session`.`owner_id`, `convmemory_session`.`visitor`, `convmemory_session`.`key`,
    `convmemory_session`.`name_hash`, `convmemory_session`.`title`, `convmemory_session`.`metadata`,
    `convmemory_session`.`archived_at`, `convmemory_session`.`starred_at`,
    `convmemory_session`.`creation_key`, `convmemory_session`.`creation_hash`,
    `convmemory_session`.`last_position`, `convmemory_session`.`unpinned_count`,
    `convmemory_session`.`unpinned_tokens`, `convmemory_session`.`settled_tokens`,
    `convmemory_session`.`newest_position`, `convmemory_session`.`pinned`,
    `convmemory_session`.`pinned_count`, `convmemory_session`.`pinned_tokens`,
    `convmemory_session`.`call_position`, `convmemory_session`.`answered_position`,
    `convmemory_session`.`exchange_calls`, `convmemory_session`.`open_calls`,
    `convmemory_session`.`last_version`, `convmemory_session`.`current_version`,
    `convmemory_session`.`covered_position`, `convmemory_session`.`covered_count`,
    `convmemory_session`.`covered_tokens`, `convmemory_session`.`indexed_position`,
    `convmemory_session`.`due_since`, `convmemory_session`.`due_revision`, `convmemory_session`.`queued_at`,
    `convmemory_session`.`attempts`, `convmemory_session`.`next_attempt_at`,
    `convmemory_session`.`lease_token`, `convmemory_session`.`lease_expires_at`,
    `convmemory_session`.`last_error`, `convmemory_session`.`rebuild_after`,
    `convmemory_session`.`fold_window`, `convmemory_session`.`turn_token`,
    `convmemory_session`.`turn_expires_at`, `convmemory_session`.`turn_question`,
    `convmemory_session`.`turn_stopped`, `convmemory_session`.`epoch`, `convmemory_session`.`revision`,
    `convmemory_session`.`details`, `convmemory_session`.`forked_from_id`,
    `convmemory_session`.`fork_position`, `convmemory_session`.`counter`, `convmemory_session`.`created_at`,
    `convmemory_session`.`updated_at`
FROM `convmemory_session`
WHERE `convmemory_session`.`id` IN (%s);

-- erase (5 of 15)
UPDATE `convmemory_session`
SET `epoch` = (`convmemory_session`.`epoch` + %s)
WHERE `convmemory_session`.`id` = %s;

-- erase (6 of 15)
SELECT `convmemory_session`.`forked_from_id` AS `forked_from`
FROM `convmemory_session`
WHERE `convmemory_session`.`id` = %s;
