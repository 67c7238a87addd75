-- Return the claims of all running jobs with a cancel request.
SELECT id, claim FROM dayjob.jobs WHERE cancel_requested AND state = 'running'
