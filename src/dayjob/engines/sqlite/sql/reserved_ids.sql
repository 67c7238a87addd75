-- Those of the ids that are reserved.
SELECT id FROM dayjob_reserved_ids WHERE reserved_until > ? AND id IN ({keys})
