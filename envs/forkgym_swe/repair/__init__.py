"""`swe/Repair-v0`: localise, edit, verify and submit on real code, in words that a small policy learns.

The environment is ``env.RepairEnv``; ``docs/swe-repair.md`` says how it works and what it cannot show.
"""
