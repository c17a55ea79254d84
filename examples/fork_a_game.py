"""Fork somebody else's environment: any Gymnasium id works, wrappers and time limit included."""

import forkgym

env = forkgym.make("Taxi-v4")
env.reset(seed=3)
for action in (1, 1, 3):
    env.step(action)

before = env.snapshot()
for action in range(6):
    with env.fork() as child:
        _, reward, *_ = child.step(action)
        print(f"action {action} would earn {reward}")

env.step(0)
env.restore(before)
handle = env.handle()
same = forkgym.replay(handle).state_hash() == env.state_hash()
print(f"{len(handle.to_bytes())} bytes rebuild this state anywhere: {same}")
