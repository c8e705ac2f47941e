"""The same checks by other rate limiters, in the same run."""
