-- Return the id of this installation.
SELECT value FROM dayjob.meta WHERE key = 'installation'
