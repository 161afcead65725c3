"""reasoning-gym's generators: golds, scores, and answers that never run as code."""

import pytest

from phloem.config import TaskConfig
from phloem.kinds import ConfigError
from phloem.rewards import Status
from phloem.rewards.runner import Crash, Timeout
from phloem.tasks import Setup, TaskError, get
from phloem.tasks.gym_reward import EVALUATED, PARSED, GymReward
from phloem.tasks.plain import is_plain_arithmetic, is_plain_literal
from phloem.tasks.reasoning_gym import build, generators

SLOW = {  # half a second or more to draw six problems
    "arc_agi",
    "codeio",
    "figlet_font",
    "futoshiki",
    "group_anagrams",
    "intermediate_integration",
    "knight_swap",
    "puzzle24",
    "quantum_lock",
    "rearc",
    "sokoban",
    "zebra_puzzles",
}


def tagged(answer):
    return f"<think>hm</think><answer>{answer}</answer>"


def test_every_gold_of_every_quick_generator_scores_one():
    quick = [name for name in generators() if name not in SLOW]
    assert len(quick) > 85
    for name in quick:
        report = build(name, Setup(train_size=2, held_out_size=1)).check()
        assert report.ok, f"{name}: {report}"


def test_by_name_with_the_generators_own_arguments():
    task = get(TaskConfig("reasoning-gym:chain_sum", {"min_terms": 2, "max_terms": 2}, train_size=20, held_out_size=10))
    assert task.name == "reasoning-gym:chain_sum"
    assert (len(task.train), len(task.held_out)) == (20, 10)
    example = task.train[0]
    assert example.row["metadata"]["num_terms"] == 2
    assert example.prompt[-1]["content"] == example.row["question"]
    right, wrong, nothing = task.score([tagged(example.answer), tagged("x"), "<think>"], [example] * 3)
    assert right.reward == 1
    assert wrong.reward < 1
    assert (nothing.status, nothing.reward) == (Status.NO_ANSWER, 0)


def test_seeds_move_the_training_rows_only_and_rows_are_not_shared():
    tasks = [build("chain_sum", Setup(seed=seed, train_size=50, held_out_size=20)) for seed in (0, 0, 1)]
    questions = [[example.row["question"] for example in task.train] for task in tasks]
    assert questions[0] == questions[1]
    assert not set(questions[0]) & set(questions[2])
    held_out = [[example.row["question"] for example in task.held_out] for task in tasks]
    assert held_out[0] == held_out[2]
    assert not set(questions[0]) & set(held_out[0])


def test_repeated_problems_are_left_out_and_counted():
    task = build("coin_flip", Setup(train_size=200, held_out_size=20), min_trials=1, max_trials=4)
    assert len({example.row["question"] for example in task.train}) == len(task.train) < 200
    assert "left out" in task.notes[-1]


def test_partial_scores_are_kept_or_held_to_a_threshold():
    setup = Setup(train_size=3, held_out_size=1)
    example = build("string_insertion", setup).train[0]
    partial = tagged(list(example.answer))
    scores = [build("string_insertion", setup, threshold=t).score([partial], [example])[0] for t in (None, 0.1, 1)]
    assert [verdict.reward for verdict in scores] == [0.1, 1, 0]
    assert scores[2].status is Status.WRONG


@pytest.mark.parametrize("generator", ["propositional_logic", "graph_color", "rubiks_cube"])
def test_golds_the_library_leaves_out_are_taken_from_its_solution(generator):
    task = build(generator, Setup(train_size=2, held_out_size=1))
    assert all(isinstance(example.answer, str) and example.row["answer"] is None for example in task.train)
    assert task.check().ok


@pytest.mark.parametrize("generator", ["rush_hour", "boxnet", "composite"])
def test_generators_that_cannot_be_checked_are_refused(generator):
    assert generator not in generators()
    with pytest.raises(TaskError, match=f"{generator} cannot be trained on"):
        build(generator, Setup(train_size=2, held_out_size=1))


def test_golds_that_hand_the_question_back_are_left_out():
    task = build("intermediate_integration", Setup(train_size=8, held_out_size=1))
    assert not any("Integral" in example.answer for example in task.train)
    assert any("golds are unusable: rows" in note for note in task.notes)
    example = task.train[0]
    verdict = task.score([tagged(f"Integral({example.row['metadata']['integrand']}, x) + C")], [example])[0]
    assert verdict.reward == 0


def test_unknown_names_and_arguments():
    with pytest.raises(ConfigError, match="did you mean chain_sum"):
        get(TaskConfig("reasoning-gym:chain_sums"))
    with pytest.raises(ConfigError, match=r"refuses task.args.*no_such"):
        get(TaskConfig("reasoning-gym:chain_sum", {"no_such": 1}))


HOSTILE = [
    "open('pwned', 'w').write('x')",
    "__import__('os').system('touch pwned')",
    "[open('pwned', 'w')]",
    "().__class__.__bases__[0].__subclasses__()",
    "(lambda: 1)()",
    "9**9**9",
    "2**9999",
    "(9**20)**20",
    "factorial(99999)",
    "(a + b + c)**20",
    "*".join(["(a + b)"] * 20),
    "[0] * 10**9",
    "'a' * 10**9",
    "(" * 400 + "1" + ")" * 400,
    "9" * 400,
    "sin(" * 60 + "x" + ")" * 60,
    "f'{open}'",
    "exec",
]


@pytest.mark.parametrize("answer", HOSTILE)
@pytest.mark.parametrize("generator", ["countdown", "polynomial_multiplication", "spiral_matrix", "n_queens"])
def test_answers_are_never_run(answer, generator, tmp_path, monkeypatch):
    assert generator in EVALUATED + PARSED
    monkeypatch.chdir(tmp_path)
    task = build(generator, Setup(train_size=1, held_out_size=1))
    (verdict,) = task.score([tagged(answer)], task.train)
    assert verdict.reward is not None
    assert verdict.reward < 0.1
    assert not list(tmp_path.iterdir())


@pytest.mark.parametrize(
    "text", ["1", "-3.5", "(3 + 5) * 3", "3*x**2/2 + C", "exp(-x)*sin(2*x)", "x**(1/2)", "2*(x+1)**3"]
)
def test_plain_arithmetic(text):
    assert is_plain_arithmetic(text)


def test_plain_literals():
    assert is_plain_literal("[[1, 2], ['a', -3.5]]")
    assert not is_plain_literal("[open('x')]")


def test_a_scorer_that_raises_scores_the_completion_zero():
    class Broken:
        def score_answer(self, answer, entry):
            raise RecursionError("too deep")

    (verdict,) = GymReward(Broken(), "chain_sum").score_batch([tagged("1")], ["1"], [{}])
    assert (verdict.status, verdict.reward) == (Status.FAULT, 0)
    assert "RecursionError" in verdict.detail


def test_what_happens_in_a_worker_is_told_apart():
    reward = GymReward(None, "countdown")
    own, machine = Crash("out of memory"), Crash("lost", infrastructure=True)
    verdicts = [reward._verdict("1", "1", outcome) for outcome in (Timeout(5.0), own, machine, 0.05, None)]
    assert [verdict.status for verdict in verdicts] == ["timeout", "fault", "fault", "wrong", "no-answer"]
    assert [verdict.reward for verdict in verdicts] == [0, 0, None, 0.05, 0]
