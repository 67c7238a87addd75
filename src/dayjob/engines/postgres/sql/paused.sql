-- Return the paused queues.
SELECT queue FROM dayjob.pauses
