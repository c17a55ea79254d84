"""Presets: each file names one method as rollout, branching, credit and loss, linked to its paper's equations.

Found by name through the entry-point group ``forkgym.algos``; ``forkgym algos`` lists them.
"""
