-- The claims that are asked to stop.
SELECT id, epoch FROM dayjob_jobs INDEXED BY dayjob_flagged WHERE state = 'running' AND cancel_requested = 1
