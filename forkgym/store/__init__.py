"""forkgym.store."""
