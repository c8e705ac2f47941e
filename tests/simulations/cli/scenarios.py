"""Words of short simulated runs."""

SHORT = ("--nodes", "3", "--set", "seconds=2", "--set", "calm=2")
AT_CORE = ("--level", "core", *SHORT, "--no-report")
