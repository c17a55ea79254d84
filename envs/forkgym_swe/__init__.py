"""Software engineering: repositories that fork, tasks made of them, hidden tests that judge."""
