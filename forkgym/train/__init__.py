"""forkgym.train."""
