"""What a node counts: plain counters, decisions by rule, and the keys denied most."""
