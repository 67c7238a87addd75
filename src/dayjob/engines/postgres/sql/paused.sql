-- The queues that hand out nothing.
SELECT queue FROM dayjob.pauses
