"""What if the agent had decided otherwise? An episode of question answering and its twins, turn by turn.

A twin differs from the episode in one turn and shares all later sampling luck, so what differs in the end is due to
that one decision. Needs the extras ``train`` and ``retrieval``.
"""

from forkgym.noise import Layout, episode_id
from forkgym.policy.engine import Sampling
from forkgym.policy.torch_engine import TorchEngine
from forkgym.rollout.branch import BranchSetting, play_branch
from forkgym.rollout.episode import EpisodeSpec, drive, play_episode
from forkgym.rollout.plan import BranchPlan
from forkgym.schedule import make_decisions
from forkgym.train.build import environment_maker, load_policy
from forkgym.train.config import EnvironmentConfig, PolicyConfig

make_env = environment_maker(EnvironmentConfig(id="retrieval/Atlas-v0"))
policy = PolicyConfig(checkpoint="package:forkgym_retrieval/checkpoints/atlas-tiny")
model, tokenizer, renderer = load_policy(policy, make_env)
engine = TorchEngine(model, renderer)
sampling = Sampling(max_tokens=20, stop_tokens=renderer.stop_tokens)

spec = EpisodeSpec(key=episode_id(7, "example", 0, 0, 0), split="test", task=12)
episode = play_episode(
    make_env(), spec, renderer=renderer, sampling=sampling, layout=Layout.TURN_LINE, release=engine.release
)
[played] = drive(engine, [episode], max_running=1)
print("Question:", renderer.decode(played.episode.prompt_tokens).strip())
for turn in played.episode.turns:
    print(f"  turn {turn.index}: {turn.text.strip()!r} -> {turn.observation[:60]!r}")
print("utility", played.episode.utility)

setting = BranchSetting(
    plan=BranchPlan(same_evidence_probability=1.0),
    renderer=renderer,
    sampling=sampling,
    layout=Layout.TURN_LINE,
    max_context=engine.max_context,
)
decisions = make_decisions([[played.episode]])
branches = drive(
    engine, [play_branch(played, decision, 0, setting, release=engine.release) for decision in decisions], max_running=8
)
for branch in branches:
    if branch.self_twin:
        print(f"turn {branch.turn}: the alternative was the same turn; nothing to learn")
    else:
        wrote = branch.turns[0].text.strip()
        print(f"turn {branch.turn}: had it written {wrote!r}, the utility would have been {branch.utility}")
played.close(engine)
