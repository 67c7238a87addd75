-- Send notifications.
-- $1 channel  $2 messages
-- A repetition is harmless: it wakes listeners once more.
SELECT pg_notify($1, message) FROM unnest($2::text[]) AS message WHERE :NOTIFICATIONS_FIT
