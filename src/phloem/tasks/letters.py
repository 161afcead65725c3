"""Generated tasks on words: the first letter, the last word, counting a letter."""

from __future__ import annotations

import random

from phloem.rewards.simple import Exact, Number
from phloem.tasks.generated import Family, Problem, build
from phloem.tasks.task import ExampleTask, Setup, TaskError

__all__ = ["first_letter", "last_word", "letter_count"]

DEFAULT = Setup()
_WORDS = """
apple arrow autumn badge banana basket beach bell bird blanket boat bottle bread bridge bucket butter button cabin
camel candle carpet castle cheese cherry circle clock cloud coffee copper corner cotton crown dance desert dinner
doctor dragon drum eagle earth east engine evening fabric farmer feather field finger flower forest fountain garden
ginger glass glove gold grape guitar hammer harbour harvest hill honey horse house island ivory jacket jewel jungle
kettle kitchen kitten ladder lake lamp lemon letter lion magnet mango map market melon mirror morning mountain music
needle nest night north novel number oak ocean office olive orange orchard oven paper parrot pencil pepper piano
picture pilot planet pocket potato queen question quiet rabbit rain ribbon river rocket roof rose sailor salad school
season shadow silver sister spoon station stone summer sunset table tailor tea teacher temple tiger tower train tulip
tunnel turtle umbrella uncle valley velvet village violin voice wagon wall water whale wheat window winter wood yard
yellow zebra
"""
WORDS = _WORDS.split()


def first_letter(setup: Setup = DEFAULT, *, words: int = 2) -> ExampleTask:
    """What is the first letter of 'green apple'? `words` common words."""
    _check(words)

    def draw(rng: random.Random) -> Problem:
        phrase = " ".join(rng.sample(WORDS, words))
        start = phrase.split()[0]
        thoughts = (f"it starts with the word {start}", f"look at {start}")
        return Problem(f"first {phrase}", f"What is the first letter of '{phrase}'?", phrase[0], thoughts)

    return build(Family("first-letter", draw, Exact(ignore_case=True)), setup)


def last_word(setup: Setup = DEFAULT, *, words: int = 4) -> ExampleTask:
    """What is the last word of: cat, dog, sun, tea? `words` common words."""
    _check(words)

    def draw(rng: random.Random) -> Problem:
        chosen = rng.sample(WORDS, words)
        listed = ", ".join(chosen)
        thoughts = (f"the list has {words} words, take word {words}", f"it starts with {chosen[0]} and ends later")
        return Problem(f"last {listed}", f"What is the last word of: {listed}?", chosen[-1], thoughts)

    return build(Family("last-word", draw, Exact(ignore_case=True)), setup)


def letter_count(setup: Setup = DEFAULT, *, words: int = 3) -> ExampleTask:
    """How many letters 'e' are in 'green apple tree'? The letter is in the phrase at least once.

    The constant answer 1 is right often: compare every curve with `constant_baseline()`.
    """
    _check(words)

    def draw(rng: random.Random) -> Problem:
        chosen = rng.sample(WORDS, words)
        phrase = " ".join(chosen)
        letter = rng.choice(sorted(set("".join(chosen))))
        holding = [word for word in chosen if letter in word]
        thoughts = ("look in " + ", ".join(holding), f"{len(holding)} of {words} words have {letter}")
        question = f"How many letters '{letter}' are in '{phrase}'?"
        return Problem(f"count {letter} {' '.join(sorted(chosen))}", question, str(phrase.count(letter)), thoughts)

    return build(Family("letter-count", draw, Number()), setup)


def _check(words: int) -> None:
    if not 2 <= words <= 8:
        raise TaskError(f"words is {words}; it must be between 2 and 8")
