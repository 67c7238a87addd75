-- The times at which the next scheduled job is due, the next waiting job expires, and the next line is due.
-- A number is less than any text, so a time of a corrupt record that is a text or bytes is left out.
SELECT
    (SELECT min(run_at) FROM dayjob_jobs INDEXED BY dayjob_due WHERE state = 'scheduled' AND run_at < ''),
    (
        SELECT min(expires_at) FROM dayjob_jobs INDEXED BY dayjob_expiries
        WHERE expires_at IS NOT NULL AND expires_at < '' AND attempts = 0 AND state IN ('pending', 'scheduled', 'limited')
    ),
    (SELECT min(due_at) FROM dayjob_buckets INDEXED BY dayjob_due_buckets WHERE due_at IS NOT NULL AND due_at < '')
