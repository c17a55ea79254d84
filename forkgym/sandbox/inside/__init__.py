"""What runs inside the broker: standard library only, imported there without the rest of forkgym.

The host imports the same modules for its own needs (copying, scanning); nothing here imports from outside this folder.
"""
