"""Commands that ask the nodes of a running cluster: one module per subcommand."""
