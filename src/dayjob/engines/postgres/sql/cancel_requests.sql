-- The claims of all running jobs that are asked to stop.
SELECT id, epoch FROM dayjob.jobs WHERE cancel_requested AND state = 'running'
