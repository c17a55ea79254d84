"""forkgym.policy."""
