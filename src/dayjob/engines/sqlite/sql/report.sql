-- Store how far a claim that is current has come.
UPDATE dayjob_jobs SET progress = ? WHERE id = ? AND epoch = ? AND state = 'running'
