"""UDP sockets for the QUIC endpoint, under trio and under asyncio."""
