INSERT INTO dayjob_queues (name) VALUES (?)
