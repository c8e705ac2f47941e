"""Event loop that the threads of the application run while they wait for it."""

from ringfence.runtime.caller_loop.loop import CallerLoop, LoopLost, Source

__all__ = ["CallerLoop", "LoopLost", "Source"]
