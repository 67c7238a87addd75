SELECT name, pending, scheduled, running, done, dead, cancelled, limited FROM dayjob_queues ORDER BY name
