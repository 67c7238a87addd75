-- $1 channel  $2 news
SELECT pg_notify($1, $2)
