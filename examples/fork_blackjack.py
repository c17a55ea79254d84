"""Hit or stick? Ask the very hand on the table: fork it, and let each fork draw cards of its own."""

import forkgym
from forkgym import Luck

FUTURES = 400

env = forkgym.make("Blackjack-v1")
(player, dealer, _), _ = env.reset(seed=14)
print(f"You hold {player}, the dealer shows {dealer}.")

for name, first_action in (("stick", 0), ("hit once, then stick", 1)):
    total = 0.0
    for child in env.fork_many(FUTURES, luck=Luck.fresh(1)):  # the same futures for both choices
        _, reward, ended, *_ = child.step(first_action)
        if not ended:
            _, reward, *_ = child.step(0)
        total += reward
    print(f"{name}: {total / FUTURES:+.2f} a hand, over {FUTURES} futures")

print("The hand on the table is untouched:", env.turn == 0)
