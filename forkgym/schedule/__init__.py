"""forkgym.schedule."""
