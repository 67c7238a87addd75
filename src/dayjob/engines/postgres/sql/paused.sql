SELECT queue FROM dayjob.pauses
