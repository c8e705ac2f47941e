"""Words of short simulated runs."""

SHORT = ("--nodes", "3", "--set", "seconds=3", "--set", "calm=3")
AT_CORE = ("--level", "core", *SHORT, "--no-report")
