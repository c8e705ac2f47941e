"""Encoding and decoding of messages as msgpack arrays."""
