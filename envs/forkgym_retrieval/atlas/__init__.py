"""Atlas: real facts about countries and cities, our own sentences about them, and multi-hop questions.

The environment is ``retrieval/Atlas-v0``; ``docs/atlas.md`` says how the world is made and what it cannot show.
"""

from forkgym_retrieval.atlas.env import AtlasEnv
from forkgym_retrieval.atlas.expert import ExpertPolicy, demonstrations
from forkgym_retrieval.atlas.questions import Question, load_questions
from forkgym_retrieval.atlas.world import World, load_world

__all__ = ["AtlasEnv", "ExpertPolicy", "Question", "World", "demonstrations", "load_questions", "load_world"]
