"""UDP transports, which connect the QUIC endpoint to a socket, under trio and under asyncio."""
