"""The limiter for blocking code, and the background thread that runs it."""
