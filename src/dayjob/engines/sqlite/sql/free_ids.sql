DELETE FROM dayjob_reserved_ids WHERE id IN ({keys})
