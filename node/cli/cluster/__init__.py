"""Commands that query the nodes of a running cluster: one module per subcommand."""
