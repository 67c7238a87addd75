SELECT value FROM dayjob_notes WHERE kind = ? AND name = ?
