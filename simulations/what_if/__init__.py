"""What rules would have done to a log, in several data centers."""
