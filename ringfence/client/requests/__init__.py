"""What a caller asks: descriptors, the counters they match, and the rows of one request."""
