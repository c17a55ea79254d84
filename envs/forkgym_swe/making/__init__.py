"""Makers of tasks: bugs injected into tested projects, and commits that repaired something."""
