"""Failure detection of SWIM and Lifeguard: probes, suspicions and flap damping."""
