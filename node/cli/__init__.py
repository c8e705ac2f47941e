"""The `ringfence` command: every verb in a module of its own, errors and output in `common`."""
