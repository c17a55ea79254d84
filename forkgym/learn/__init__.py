"""forkgym.learn."""
