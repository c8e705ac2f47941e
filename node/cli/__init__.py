"""The `ringfence` command: one module per subcommand; `common` has errors and output."""
