"""What holds for all tests: how many examples a law is tried on, and what processes inherit."""

import os

from hypothesis import settings

# Laws that say nothing of their own; `HYPOTHESIS_PROFILE=nightly pytest` tries them harder.
settings.register_profile("quick", max_examples=100, deadline=None)
settings.register_profile("nightly", max_examples=1000, deadline=None)
settings.load_profile(os.environ.get("HYPOTHESIS_PROFILE", "quick"))

# The tests start some hundred processes: without a cache each one would compile our modules anew,
# and every run all tests.
os.environ.pop("PYTHONDONTWRITEBYTECODE", None)
