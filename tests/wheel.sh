#!/usr/bin/env bash
# Builds the wheel, installs it without extras into a fresh environment, and uses it there as a stranger would.
set -euo pipefail
python=$1
root=$(cd "$(dirname "$0")/.." && pwd)
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
"$python" -m pip wheel --quiet --no-deps --wheel-dir "$folder" "$root"
"$python" -m venv "$folder/venv"
"$folder/venv/bin/python" -m pip install --quiet -c "$root/constraints.txt" "$folder"/forkgym-*.whl
cd "$folder"
forkgym=$folder/venv/bin/forkgym
"$forkgym" envs
"$forkgym" bench env_fork --env toy/Chain-v0 --json | tail -n 1
"$forkgym" bench env_throughput --env toy/Chain-v0 --json | tail -n 1
"$folder/venv/bin/python" -c '
import sys, forkgym
env = forkgym.make("toy/Chain-v0"); env.reset(seed=1)
assert forkgym.replay(env.handle()).state_hash() == env.state_hash()
assert "torch" not in sys.modules
print("the wheel forks and replays without extras")
'
