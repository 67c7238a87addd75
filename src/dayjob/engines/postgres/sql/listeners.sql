-- Return how many sessions of this database listen for notifications. Each of them is woken by each notification.
SELECT count(*) FROM pg_stat_activity WHERE application_name = :LISTENER AND datname = current_database()
