SELECT name, pending, scheduled, running, done, dead, cancelled FROM dayjob_queues ORDER BY name
