"""Part of forkgym."""
