"""The limiter for blocking code, which runs in the threads that call it."""
