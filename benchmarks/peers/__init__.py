"""Other job queues, configured for throughput as their documentation recommends, in separate processes."""
