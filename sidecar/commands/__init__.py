"""What people type: one file a subcommand, each with HELP, `add_arguments` and `run`."""
