-- Return the due time of a bucket, if it has one.
-- $1 name
SELECT due FROM dayjob.buckets WHERE name = $1
