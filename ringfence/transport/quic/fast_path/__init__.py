"""The short path of 1-RTT packets beside aioquic: stream data and acknowledgements."""
