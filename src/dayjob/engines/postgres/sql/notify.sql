-- Send a notification.
-- $1 channel  $2 message
-- A repetition is harmless: it wakes listeners once more.
SELECT pg_notify($1, $2)
