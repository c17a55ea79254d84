"""Repair a project by hand, fork before the edit, and see what another edit would have brought."""

import numpy as np

import forkgym

env = forkgym.make("swe/Repair-v0")
prompt, info = env.reset(seed=0, options={"split": "test", "task": 0})
print(f"{info['instance']}\n{prompt}")
for action in ("look", "rank", "inspect 1"):
    print(f"> {action}\n{env.step(action)[0]}")

twin = env.fork()  # the same project in the same state; neither sees the other's edits
for name, side, edit in (("here", env, "edit 1 a"), ("twin", twin, "edit 1 b")):
    side.step(edit)
    print(f"{name}: {edit}, test: {side.step('test')[0]}")
    print(f"{name}: submit: {side.step('submit')[0]}")

# What the teacher of small policies does with the same task.
env.reset(seed=0, options={"split": "test", "task": 0})
rng, done = np.random.default_rng(0), False
while not done:
    action = env.scripted_action("expert", rng)
    observation, reward, terminated, truncated, _ = env.step(action)
    done = terminated or truncated
    print(f"teacher: {env.render_action(action)} -> {observation}")
print(f"reward {reward}")
