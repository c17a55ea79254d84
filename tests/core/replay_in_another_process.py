"""Reads handles (JSON lines) from standard input, replays each, and prints its state hash. Run by the tests."""

import sys

import forkgym

for line in sys.stdin:
    env = forkgym.replay(forkgym.Handle.from_json(line), verify=sys.argv[1])
    print(env.state_hash(), flush=True)
    env.close()
