"""Thoughts that do not close, tags of the template and of the vocabulary, deeper plans from settings."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
import torch
from short_runs import metrics, rollouts
from tiny_models import tiny_model
from tiny_run import distinct_letters, tiny_run
from tiny_tokenizers import byte_level
from tokenizers import AddedToken

from phloem import ConfigError, SampleConfig, TaskConfig, TrainConfig, credit, load_config, presets, tasks, to_yaml
from phloem.models import encode_prompt
from phloem.sample import ForkPlan, HFSampler, SampleError, Stage
from phloem.settings import resolve
from phloem.tasks import ExampleTask
from phloem.train.metrics import rethinks
from phloem.train.shaping import shaped
from phloem.tree import Finish, Group, PrefixTree, Segment

TOKENIZER = byte_level(alphabet="abck<>/xĊ")
SIZE = len(TOKENIZER)
PROMPTS = [np.array([0, 5, 6, 7, 5, 8]), np.array([4, 9])]
KEYS = [(7, i) for i in range(len(PROMPTS))]
CLOSED = ForkPlan((Stage(3, 8, "x", closing="cax"), Stage(2, 5)))
FORCED = TOKENIZER("cax", add_special_tokens=False).input_ids


def sampler(**config) -> HFSampler:
    model = tiny_model("llama", vocab_size=SIZE, initializer_range=0.08)
    return HFSampler(model, TOKENIZER, SampleConfig(**config), eos_ids=(1, 3))


# ------------------------------------------------------------------------------------- closed by force


@pytest.fixture(scope="module")
def closed() -> list[Group]:
    return sampler(max_rows=5).sample(PROMPTS * 4, CLOSED, [(0, i) for i in range(8)])


def _is_forced(segment: Segment) -> bool:
    return not segment.sampled_mask.all()


@pytest.mark.model
def test_a_thought_at_its_budget_is_closed_and_forks(closed):
    thoughts = [s for g in closed for s, level in zip(g.segments, g.levels_S, strict=True) if level == 1]
    forced = [s for s in thoughts if _is_forced(s)]
    assert 0 < len(forced) < len(thoughts)
    for segment in forced:
        assert segment.finish is Finish.FORK
        assert len(segment) == 8, "forced text is a part of the budget"
        assert segment.tokens[-len(FORCED) :].tolist() == FORCED
        assert segment.sampled_mask.tolist() == [True] * (8 - len(FORCED)) + [False] * len(FORCED)
        assert np.array_equal(np.isnan(segment.logprobs), ~segment.sampled_mask)
    assert not any(s.finish is Finish.LENGTH for s in thoughts)
    for group in closed:
        children = np.bincount([s.parent for s in group.segments if s.parent is not None], minlength=99)
        for index, segment in enumerate(group.segments):
            assert children[index] == (2 if segment.finish is Finish.FORK else 0)


@pytest.mark.model
def test_what_follows_forced_text_is_sampled_in_its_context(closed):
    model = tiny_model("llama", vocab_size=SIZE, initializer_range=0.08).eval()
    for group in closed:
        for rollout, leaf in enumerate(group.leaves):
            ids = torch.from_numpy(np.concatenate([group.prompt, group.completion(rollout)]))
            first = len(group.prompt)
            with torch.no_grad():
                exact = model(ids[None]).logits[0, first - 1 : -1].log_softmax(-1)[range(len(ids) - first), ids[first:]]
            own = np.concatenate([group.segments[s].logprobs for s in group.path(leaf)])
            known = group.completion_sampled(rollout)
            assert np.abs(own - exact.numpy())[known].max() < 1e-5


@pytest.mark.model
@pytest.mark.parametrize("rows", [1, 3, 16])
def test_forced_text_does_not_depend_on_the_batch(closed, rows):
    again = sampler(max_rows=rows).sample(PROMPTS * 4, CLOSED, [(0, i) for i in range(8)])
    for one, other in zip(closed, again, strict=True):
        assert [s.tokens.tolist() for s in one.segments] == [s.tokens.tolist() for s in other.segments]


@pytest.mark.model
@pytest.mark.parametrize("preset", sorted(presets.PRESETS))
def test_forced_text_has_no_credit_and_is_in_no_count(closed, preset):
    rng = np.random.default_rng(0)
    for group in closed:
        group = group.with_rewards(rng.random(group.group_size).tolist())
        tree = PrefixTree.from_group(group)
        assigned = credit.assign(group, presets.get(preset, beta=0.1, max_completion_tokens=13))
        lengths = sum(int(group.completion_sampled(r).sum()) for r in range(group.group_size))
        assert tree.Z == lengths, "Z counts sampled tokens only"
        assert tree.U == int(tree.sampled_T.sum())
        for index, segment in enumerate(group.segments):
            if _is_forced(segment):
                at = tree.segment_index(index)[~segment.sampled_mask]
                alone = at[~tree.sampled_T[at]]  # another thought may have sampled the very same token
                assert alone.size
                for credit_T in (assigned.c_pos_T, assigned.c_neg_T, assigned.c_kl_T, tree.count_T):
                    assert not credit_T[alone].any()


def test_the_length_of_a_closed_thought_is_that_of_its_sampled_part():
    """Weights 1 / (n_groups n_level |y_b|): |y| is 2 of the 4 tokens."""
    mask = np.array([True, True, False, False])
    thoughts = [Segment(np.array([5, 6, 8, 9]), sampled=mask), Segment(np.array([7, 6, 8, 9]))]
    answers = [Segment(np.array([n]), parent=n % 2, reward=float(n % 2)) for n in range(4)]
    group = Group(np.array([0]), (*thoughts, *answers))
    found = credit.assign(group, presets.get("grpo-ma", scale="none"))
    tree = found.tree
    assert np.abs(found.c_neg_T[tree.segment_index(0)]).tolist() == pytest.approx([0.5 / 4, 0.5 / 4, 0, 0])
    assert found.c_pos_T[tree.segment_index(1)].tolist() == pytest.approx([0.5 / 8] * 4)


def test_closing_text_must_fit_its_budget_and_close():
    with pytest.raises(SampleError, match="closing text 'cax' has 3 tokens and the budget is 3"):
        sampler().sample(PROMPTS, ForkPlan((Stage(2, 3, "x", closing="cax"), Stage(2, 2))), KEYS)
    with pytest.raises(SampleError, match="does not end with its `until`"):
        Stage(2, 9, "x", closing="xa")
    with pytest.raises(SampleError, match="does not end with its `until`"):
        Stage(2, 9, closing="xa")


# ----------------------------------------------------------------------------------------------- settings


def test_the_policy_for_unclosed_thoughts_reaches_the_plan():
    leaf, drop, close, own = (
        ForkPlan.from_config(SampleConfig(**settings)).stages[0].closing
        for settings in (
            {},
            {"unclosed_thought": "drop"},
            {"unclosed_thought": "close"},
            {"unclosed_thought": "close", "closing_text": "\nEnough.\n</think>"},
        )
    )
    assert (leaf, drop, close, own) == (None, None, "</think>", "\nEnough.\n</think>")


FORKS = "[{fan_out: 2, max_tokens: 6, until: </plan>}, {fan_out: 3, max_tokens: 4}, {fan_out: 2, max_tokens: 9}]"


def test_deeper_plans_come_from_a_file_the_command_line_and_python(tmp_path):
    path = tmp_path / "run.yaml"
    path.write_text(f"sample:\n  forks: {FORKS}\n", encoding="utf-8")
    from_file, from_line = load_config(path), resolve([], [("sample.forks", FORKS)])
    plan = ForkPlan.from_config(from_file.sample)
    assert plan == ForkPlan((Stage(2, 6, "</plan>"), Stage(3, 4), Stage(2, 9)))
    assert from_file == from_line
    path.write_text(to_yaml(from_file), encoding="utf-8")
    assert load_config(path) == from_file
    assert (from_file.sample.group_size, from_file.sample.max_completion_tokens) == (12, 19)
    assert from_file.sample.shape == "2 x 3 x 2"


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"forks": [{"fan_out": 2}]}, r"list of mappings with the keys fan_out, max_tokens, until"),
        ({"forks": [{"fan_out": 2, "max_tokens": 3, "tag": "x"}]}, r"list of mappings with the keys"),
        ({"forks": [{"fan_out": "2", "max_tokens": 3}]}, r"sample\.forks\.fan_out is '2'; it takes a whole number"),
        ({"forks": [{"fan_out": 0, "max_tokens": 3}]}, r"sample\.forks\.fan_out is 0; it must be at least 1"),
        ({"forks": [{"fan_out": 2, "max_tokens": 3, "until": "x"}]}, r"nothing follows it"),
        ({"forks": [{"fan_out": 2, "max_tokens": 3}], "thoughts": 8}, r"sample\.forks and sample\.thoughts are both"),
        ({"unclosed_thought": "close", "answers": 1}, r"no segment ends at a closing text"),
        ({"closing_text": "</think>"}, r"set sample\.unclosed_thought to close"),
        ({"unclosed_thought": "close", "closing_text": "enough"}, r"must end with the closing tag '</think>'"),
    ],
)
def test_plans_that_cannot_be_honoured_are_refused(settings, message):
    with pytest.raises(ConfigError, match=message):
        SampleConfig(**settings)


def test_one_rollout_is_no_group_in_any_notation():
    with pytest.raises(ConfigError, match=r"sample\.forks"):
        TrainConfig(sample=SampleConfig(forks=({"fan_out": 1, "max_tokens": 3},)))


# ------------------------------------------------------------------------------------------------ dropped


def _mixed() -> Group:
    ids = np.array([5])
    return Group(
        np.array([0]), (Segment(ids), Segment(ids + 1, finish=Finish.LENGTH), Segment(ids, 0), Segment(ids, 0))
    )


def test_dropped_thoughts_are_not_scored_and_leave_every_count():
    group = _mixed().with_rewards([1, 0, 1])
    dropped = shaped(group, TrainConfig(sample=SampleConfig(unclosed_thought="drop")))
    assert shaped(group, TrainConfig()) is group
    assert np.isnan(dropped.rewards_R).tolist() == [True, False, False]
    rule = presets.get("grpo-ma")
    tree = credit.assign(dropped, rule).tree
    assert 6 not in tree.tokens_T
    assert (tree.U, tree.Z) == (2, 4)


@pytest.mark.model
@pytest.mark.parametrize("policy", ["leaf", "close", "drop"])
def test_a_run_under_each_policy(tmp_path, policy):
    """The tiny model closes nothing by itself within two tokens."""
    sample = SampleConfig(thoughts=3, answers=2, fork_at="<<<", thought_tokens=5, answer_tokens=3)
    if policy == "drop":  # a tag that is met now and then, so that something is left to train
        sample = replace(sample, fork_at="<", thought_tokens=60, answer_tokens=3, thoughts=6)
    tiny_run(tmp_path, reward=distinct_letters, sections={"sample": replace(sample, unclosed_thought=policy)})
    (step,) = metrics(tmp_path / "run", "train")
    thoughts = [s for g in rollouts(tmp_path / "run") for s in g["segments"] if s["level"] == 1]
    if policy == "leaf":
        assert step["unforked"] == step["truncated"] == 1
        assert all(s["scored"] for s in thoughts)
    elif policy == "close":
        assert (step["unforked"], step["closed_by_force"]) == (0, 1)
        assert all(s["sampled"] == [True, True, False, False, False] for s in thoughts)
        assert step["U"] <= 2 * (3 * 2 + 6 * 3)
    else:
        assert {s["scored"] for s in thoughts if s["finish"] != "fork"} == {False}
        assert 0 < step["unforked"] < 1


# --------------------------------------------------------------------------------- templates and their tags

OPENS = "{% for m in messages %}{{ m['content'] }}<|eot|>{% endfor %}{% if add_generation_prompt %}<think>\n{% endif %}"


@pytest.fixture(scope="module")
def native() -> tuple:
    """A tokenizer whose thinking tags are single special tokens, and whose template opens the thought."""
    tokenizer = byte_level(OPENS)
    tokenizer.add_tokens([AddedToken(t, special=True, normalized=False) for t in ("<think>", "</think>")])
    model = tiny_model("llama", vocab_size=len(tokenizer), initializer_range=0.02)
    return model, tokenizer


@pytest.mark.model
def test_native_tags_fork_where_the_single_token_stands(native):
    model, tokenizer = native
    tag = tokenizer.convert_tokens_to_ids("</think>")
    prompt = encode_prompt(tokenizer, "why?")
    assert tokenizer.decode(prompt).endswith("<think>\n"), "the template opens the thought"
    own = HFSampler(model, tokenizer, SampleConfig(), eos_ids=())
    groups = own.sample([prompt] * 8, ForkPlan((Stage(4, 60, "</think>"), Stage(2, 3))), [(0, i) for i in range(8)])
    forked = [s for g in groups for s in g.segments if s.finish is Finish.FORK]
    assert forked
    for segment in forked:
        assert segment.tokens[-1] == tag
        assert tag not in segment.tokens[:-1]


def test_rewards_see_a_thought_that_the_template_opened():
    task = tasks.get(TaskConfig(name="sums", opening="<think>", held_out_size=4, train_size=4))
    assert isinstance(task, ExampleTask)
    example = task.train[0]
    right = f"one</think><answer>{example.answer}</answer>"
    assert [v.reward for v in task.score([right, "<think>" + right], [example, example])] == [1, 0]
    assert all(not text.startswith("<think>") for e in task.train for text in e.demonstrations)
    assert not task.check().failing


def test_template_arguments_reach_the_template():
    template = "{{ messages[0]['content'] }}{% if enable_thinking %}<think>{% endif %}"
    tokenizer = byte_level(template, bos=None)
    assert tokenizer.decode(encode_prompt(tokenizer, "a", template_args={"enable_thinking": True})) == "a<think>"
    assert tokenizer.decode(encode_prompt(tokenizer, "a")) == "a"


def test_answers_that_think_again_are_counted():
    def segment(text: str, parent: int | None = None) -> Segment:
        return Segment(np.frombuffer(text.encode(), dtype=np.uint8).astype(np.int64), parent)

    answers = ("4", "<think>or 5", "so</think>4", "<answer>4")
    group = Group(np.array([1]), (segment("<think>x</think>"), *(segment(a, 0) for a in answers), segment("<think>")))
    plan = ForkPlan((Stage(2, 99, "</think>"), Stage(4, 99)))
    assert rethinks([group], plan, lambda ids: bytes(ids.tolist()).decode()) == 0.5
    assert np.isnan(rethinks([group], ForkPlan.plain(2, 9), lambda ids: "<think>"))
