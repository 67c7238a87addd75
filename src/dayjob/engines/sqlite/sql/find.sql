-- Full records. The caller inserts the conditions, the order and the limit.
SELECT
    job.id, queue.name, job.task, job.payload, job.headers, job.tenant, job.priority, job.state,
    job.attempts, job.max_attempts, job.epoch, job.enqueued_at, job.run_at, job.claimed_at,
    job.lease_expires_at, job.finished_at, job.expires_at, job.last_error, job.errors, job.dedup_key,
    job.dedup_until, job.cancel_requested, job.worker, job.result,
    job.progress
FROM dayjob_jobs AS job {index} CROSS JOIN dayjob_queues AS queue
WHERE queue.id = job.queue_id AND {conditions}
{order}
