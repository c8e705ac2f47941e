"""The limiter for code that blocks, and the background thread that runs it."""
