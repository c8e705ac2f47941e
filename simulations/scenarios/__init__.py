"""What is simulated: scenarios, faults, loads, and how they are drawn from a seed."""
