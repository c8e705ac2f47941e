"""The node level: whole nodes on trio, virtual time and a simulated network."""
