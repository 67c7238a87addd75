SELECT name, value FROM dayjob_documents WHERE kind = 'limit'
