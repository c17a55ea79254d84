"""An environment of your own in 25 lines: it forks, rewinds, replays and is checked."""

import gymnasium
import numpy as np

import forkgym
import forkgym.testing


class CountdownEnv(forkgym.Env):
    """Take 1, 2 or 3 sticks; the dealer, whose luck is keyed, takes as many; whoever takes the last wins."""

    action_space = gymnasium.spaces.Discrete(3)
    observation_space = gymnasium.spaces.Box(-6, 21, shape=(1,), dtype=np.int64)

    def _reset(self, *, seed, options):
        self.sticks = 21
        return np.array([self.sticks]), {}

    def _step(self, action):
        self.sticks -= int(action) + 1
        won = self.sticks <= 0
        if not won:
            self.sticks -= self.luck.integers("dealer", 1, 4)
        return np.array([self.sticks]), float(won), self.sticks <= 0, False, {}

    def _get_state(self):
        return self.sticks

    def _set_state(self, state):
        self.sticks = state


forkgym.register("example/Countdown-v0", entry_point=CountdownEnv, max_episode_steps=30)
forkgym.testing.check_env("example/Countdown-v0")

env = forkgym.make("example/Countdown-v0")
env.reset(seed=7)
env.step(0)
twins = env.fork_many(3)
for take, twin in enumerate(twins):
    observation, *_ = twin.step(take)
    print(f"had I taken {take + 1}: {observation[0]} sticks left")
print("and nothing happened to me:", env.step(0)[0][0], "sticks left")
print("replayed:", forkgym.replay(env.handle()).state_hash() == env.state_hash())
