"""Rollouts: traces of episodes and branches, and the generators that produce them."""
