"""Renderers: a trajectory is a concatenation of ids, and what the policy sampled is never tokenised again."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tokenizers import Tokenizer, decoders, models, pre_tokenizers, trainers
from transformers import PreTrainedTokenizerFast

from forkgym.noise import Layout, episode_id
from forkgym.policy.chat import PlainRenderer, Renderer, TemplateRenderer, TinyRenderer, choose_renderer
from forkgym.policy.tiny import build_tokenizer
from tests.policy.models import PROMPT, VOCABULARY

CHATML = (
    "{% for m in messages %}<|im_start|>{{ m['role'] }}\n{{ m['content'] }}<|im_end|>\n{% endfor %}"
    "{% if add_generation_prompt %}<|im_start|>assistant\n{% endif %}"
)
FORGETFUL = (  # drops the text of every assistant turn but the last, as templates that strip old thoughts do
    "{% for m in messages %}<|im_start|>{{ m['role'] }}\n"
    "{% if m['role'] != 'assistant' or loop.index >= loop.length - 1 %}{{ m['content'] }}{% endif %}<|im_end|>\n"
    "{% endfor %}{% if add_generation_prompt %}<|im_start|>assistant\n{% endif %}"
)
USER_ONLY = (
    "{% for m in messages %}{% if m['role'] == 'tool' %}{{ raise_exception('no tools here') }}{% endif %}"
    "<|im_start|>{{ m['role'] }}\n{{ m['content'] }}<|im_end|>\n{% endfor %}"
)


def byte_level_tokenizer(template=None):
    """A byte-level BPE of 300 tokens: the kind of tokenizer chat models have."""
    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(
        vocab_size=300,
        special_tokens=["<|end|>", "<|im_start|>", "<|im_end|>"],
        initial_alphabet=pre_tokenizers.ByteLevel.alphabet(),
        show_progress=False,
    )
    tokenizer.train_from_iterator(["\n\n", "the cat", "the end"] * 4, trainer)
    wrapped = PreTrainedTokenizerFast(tokenizer_object=tokenizer, eos_token="<|end|>")
    wrapped.chat_template = template
    return wrapped


CHAT = TemplateRenderer(byte_level_tokenizer(CHATML))
PLAIN = PlainRenderer(byte_level_tokenizer())
TINY = TinyRenderer(build_tokenizer(VOCABULARY))


@pytest.mark.parametrize("renderer", [CHAT, PLAIN, TINY], ids=["chat", "plain", "tiny"])
def test_every_renderer_speaks_the_protocol(renderer):
    assert isinstance(renderer, Renderer)
    assert renderer.newlines.shape == (renderer.vocabulary_size,)
    assert renderer.newlines.dtype == np.uint8
    assert all(0 <= token < renderer.vocabulary_size for token in renderer.stop_tokens)


@given(sampled=st.lists(st.lists(st.integers(0, 299), max_size=8), min_size=1, max_size=4), text=st.text(max_size=20))
@settings(max_examples=60, deadline=None)
def test_a_trajectory_is_a_pure_concatenation_so_training_sees_the_sampled_ids(sampled, text):
    """Whatever ids were sampled (canonical or not, valid text or not), they stand in the trajectory as they are."""
    for renderer in (CHAT, PLAIN):
        trajectory = renderer.prompt([{"role": "user", "content": text}])
        places = []
        for turn in sampled:
            places.append((len(trajectory), turn))
            trajectory = [*trajectory, *turn, *renderer.observation(text)]
        assert all(trajectory[at : at + len(turn)] == turn for at, turn in places)
        assert all(renderer.observation(text) == renderer.observation(text) for _ in range(2))


@given(turns=st.lists(st.tuples(st.text(max_size=12), st.text(max_size=12)), min_size=1, max_size=3))
@settings(max_examples=60, deadline=None)
def test_the_chat_renderer_builds_what_the_template_itself_would_render(turns):
    """For turns in canonical tokenisation the pieces add up to the template's own rendering of the conversation."""
    tokenizer = byte_level_tokenizer(CHATML)
    messages = [{"role": "user", "content": "the question"}]
    trajectory = CHAT.prompt(messages)
    for said, answer in turns:
        trajectory = [*trajectory, *CHAT.written(said), *CHAT.observation(answer)]
        messages += [{"role": "assistant", "content": said}, {"role": "user", "content": answer}]
    rendered = tokenizer.apply_chat_template(messages, add_generation_prompt=True, tokenize=False)
    assert tokenizer.decode(trajectory, clean_up_tokenization_spaces=False) == rendered


def test_an_unfinished_turn_is_closed_before_the_observation():
    end = CHAT.stop_tokens[0]
    assert CHAT.observation("x", closed=False) == [end, *CHAT.observation("x")]
    assert TINY.observation("so", closed=False) == [*TINY.stop_tokens, *TINY.observation("so")]


def test_the_chat_template_decides_which_tokens_end_a_turn():
    names = byte_level_tokenizer().convert_ids_to_tokens(list(CHAT.stop_tokens))
    assert names == ["<|im_end|>", "<|end|>"]


@pytest.mark.parametrize(
    ("template", "role", "message"),
    [
        (None, "user", "no chat_template"),
        (FORGETFUL, "user", "renders earlier turns differently"),
        (USER_ONLY, "tool", "refuses a 'tool' message"),
    ],
)
def test_a_template_that_cannot_be_extended_is_refused_with_the_way_out(template, role, message):
    with pytest.raises(ValueError, match=message) as refused:
        TemplateRenderer(byte_level_tokenizer(template), observation_role=role)
    assert "PlainRenderer" in str(refused.value)


def test_newlines_are_counted_in_bytes_of_each_token():
    tokenizer = byte_level_tokenizer()
    for text, lines in (("\n", 1), ("a", 0)):
        (token,) = tokenizer(text, add_special_tokens=False)["input_ids"]
        assert PLAIN.newlines[token] == lines
    double = [i for i in range(len(tokenizer)) if tokenizer.decode([i]).count("\n") == 2]
    assert double, "the test's tokenizer should have learnt a double newline"
    assert all(PLAIN.newlines[token] == 2 for token in double)


def test_padded_embeddings_get_a_longer_newline_table_and_shorter_ones_an_error():
    tokenizer = byte_level_tokenizer(CHATML)
    assert len(TemplateRenderer(tokenizer, vocabulary_size=320).newlines) == 320
    with pytest.raises(ValueError, match="resize the model's embeddings"):
        PlainRenderer(tokenizer, vocabulary_size=10)


def test_the_tiny_renderer_follows_the_tiny_languages_conventions():
    assert TINY.decode(TINY.prompt(PROMPT)) == "what is the capital of France ? \n"
    assert TINY.prompt(PROMPT)[-1] == TINY.encode("\n")[0]
    observation = TINY.observation("Paris is the capital of France .")
    assert TINY.decode(observation) == "Paris is the capital of France ."
    assert len(observation) == 8, "<obs> and seven words"
    conversation = [*PROMPT, {"role": "assistant", "content": "search"}, {"role": "tool", "content": "Paris ."}]
    pieces = [*TINY.prompt(PROMPT), *TINY.written("search"), *TINY.observation("Paris .")]
    assert TINY.prompt(conversation) == pieces


words = st.sampled_from([*VOCABULARY.words, *(n for names in VOCABULARY.entities.values() for n in names), "\n"])


@given(st.lists(words, max_size=20).map(" ".join))
@settings(max_examples=200, deadline=None)
def test_texts_of_the_tiny_language_survive_the_round_trip(text):
    assert TINY.decode(TINY.encode(text)) == text


def test_renderers_are_chosen_by_their_tokenizer():
    assert isinstance(choose_renderer(build_tokenizer(VOCABULARY)), TinyRenderer)
    assert isinstance(choose_renderer(byte_level_tokenizer(CHATML)), TemplateRenderer)
    assert isinstance(choose_renderer(byte_level_tokenizer()), PlainRenderer)
    with pytest.raises(ValueError, match="not made by build_tokenizer"):
        TinyRenderer(byte_level_tokenizer())


def test_the_newline_table_fits_the_key_stream():
    from forkgym.noise import KeyStream

    keys = KeyStream(Layout.TURN_LINE, episode_id(0, "train", 0, 0, 0), newlines=TINY.newlines)
    keys.start_turn(0, 0)
    for token in TINY.encode("so \n search Paris"):
        keys.advance(token)
    assert (keys.line, keys.position) == (1, 2)
