-- Full records. The caller inserts the conditions, the order and the limit.
SELECT queue.name, :JOB_COLUMNS
FROM dayjob_jobs AS job {index} CROSS JOIN dayjob_queues AS queue
WHERE queue.id = job.queue_id AND {conditions}
{order}
