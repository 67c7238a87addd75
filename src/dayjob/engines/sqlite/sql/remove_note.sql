DELETE FROM dayjob_notes WHERE kind = ? AND name = ?
