"""forkgym.report."""
