"""forkgym.credit."""
