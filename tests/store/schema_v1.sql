CREATE TABLE run (id INTEGER PRIMARY KEY CHECK (id = 1), config TEXT NOT NULL, digest TEXT NOT NULL, versions TEXT NOT NULL, created REAL NOT NULL);

CREATE TABLE updates (number INTEGER PRIMARY KEY, metrics TEXT NOT NULL, ledger TEXT NOT NULL, recorded REAL NOT NULL);

CREATE TABLE episodes (
  id INTEGER PRIMARY KEY,
  generated_tokens INTEGER NOT NULL,
  key INTEGER NOT NULL,
  environment TEXT NOT NULL,
  split TEXT NOT NULL,
  task INTEGER NOT NULL,
  update_number INTEGER NOT NULL,
  group_number INTEGER NOT NULL,
  member INTEGER NOT NULL,
  version INTEGER NOT NULL,
  prompt_tokens BLOB NOT NULL,
  utility REAL NOT NULL,
  success INTEGER NOT NULL,
  handle TEXT NOT NULL,
  failure TEXT NOT NULL
);

CREATE TABLE decisions (
  id INTEGER PRIMARY KEY,
  episode_id INTEGER NOT NULL REFERENCES episodes ON DELETE CASCADE,
  episode INTEGER NOT NULL,
  update_number INTEGER NOT NULL,
  group_number INTEGER NOT NULL,
  member INTEGER NOT NULL,
  turn INTEGER NOT NULL,
  terminal INTEGER NOT NULL,
  utility REAL NOT NULL,
  features BLOB NOT NULL,
  discordance REAL NOT NULL,
  baseline REAL NOT NULL,
  cost REAL NOT NULL,
  score REAL NOT NULL,
  propensity REAL NOT NULL,
  coin REAL NOT NULL,
  branched INTEGER NOT NULL,
  credit REAL
);

CREATE TABLE branches (
  id INTEGER PRIMARY KEY,
  decision_id INTEGER NOT NULL REFERENCES decisions ON DELETE CASCADE,
  parent INTEGER NOT NULL,
  turn INTEGER NOT NULL,
  number INTEGER NOT NULL,
  kind TEXT NOT NULL,
  layout TEXT NOT NULL,
  stream INTEGER NOT NULL,
  proposal_attempts INTEGER NOT NULL,
  self_twin INTEGER NOT NULL,
  same_evidence INTEGER NOT NULL,
  continued INTEGER NOT NULL,
  skipped INTEGER NOT NULL,
  continuation_probability REAL NOT NULL,
  utility REAL NOT NULL,
  factual_utility REAL NOT NULL,
  generated_tokens INTEGER NOT NULL
);

CREATE TABLE turns (
  id INTEGER PRIMARY KEY,
  episode_id INTEGER REFERENCES episodes ON DELETE CASCADE,
  branch_id INTEGER REFERENCES branches ON DELETE CASCADE,
  arm TEXT NOT NULL,
  number INTEGER NOT NULL,
  context_length INTEGER NOT NULL,
  tokens BLOB NOT NULL,
  logprobs BLOB NOT NULL,
  entropies BLOB NOT NULL,
  gini_impurities BLOB NOT NULL,
  finish_reason TEXT NOT NULL,
  text TEXT NOT NULL,
  action TEXT NOT NULL,
  action_kind TEXT NOT NULL,
  observation TEXT NOT NULL,
  observation_tokens BLOB NOT NULL,
  evidence TEXT NOT NULL,
  reward REAL NOT NULL,
  terminal INTEGER NOT NULL,
  action_start INTEGER NOT NULL,
  state_hash TEXT NOT NULL,
  supports BLOB
);

CREATE TABLE evaluations (id INTEGER PRIMARY KEY, update_number INTEGER NOT NULL, name TEXT NOT NULL, metrics TEXT NOT NULL, recorded REAL NOT NULL, UNIQUE (update_number, name));

CREATE TABLE events (id INTEGER PRIMARY KEY, update_number INTEGER NOT NULL, name TEXT NOT NULL, detail TEXT NOT NULL, recorded REAL NOT NULL);

CREATE UNIQUE INDEX episodes_place ON episodes (update_number, group_number, member);

CREATE INDEX episodes_key ON episodes (key);

CREATE INDEX decisions_episode ON decisions (episode_id);

CREATE INDEX branches_decision ON branches (decision_id);

CREATE INDEX turns_episode ON turns (episode_id) WHERE episode_id IS NOT NULL;

CREATE INDEX turns_branch ON turns (branch_id) WHERE branch_id IS NOT NULL;
