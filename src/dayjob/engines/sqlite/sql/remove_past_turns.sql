-- Remove the turns of tenants that the turn of their queue has passed.
DELETE FROM dayjob_turns
WHERE
    (queue_id, tenant) IN (
        SELECT past.queue_id, past.tenant
        FROM dayjob_turns AS past CROSS JOIN dayjob_queues AS queue
        WHERE queue.id = past.queue_id AND past.turn <= queue.turn
        LIMIT ?
    )
