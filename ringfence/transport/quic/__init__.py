"""QUIC: many connections on one UDP port, built on aioquic."""
