"""The demonstration: three nodes on loopback limit a bundled access log, and one is killed."""
