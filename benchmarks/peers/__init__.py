"""Other job queues, each used as its documentation advises for throughput, in processes of their own."""
