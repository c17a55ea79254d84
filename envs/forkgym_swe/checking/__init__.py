"""Which tasks are admitted: those that behave the same every time, and that no other split gives away."""
