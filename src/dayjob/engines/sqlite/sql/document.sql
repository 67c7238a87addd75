SELECT value FROM dayjob_documents WHERE kind = ? AND name = ?
