"""``dayjob demo``: a scenario with failing, delayed and cancelled jobs, and an audit of every job."""
