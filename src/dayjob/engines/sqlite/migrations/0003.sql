-- Layout 3: dayjob_notes is renamed to dayjob_documents.

ALTER TABLE dayjob_notes RENAME TO dayjob_documents;
