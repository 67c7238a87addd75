-- Running jobs with a cancel request.
SELECT id, claim FROM dayjob_jobs INDEXED BY dayjob_flagged WHERE state = 'running' AND cancel_requested = 1
