"""Compile pool, worker process, verification and timing."""
