"""The pieces behind `phloem.rewards.math`: what a completion's answer is, how it reads, and when two answers agree.

    extract.py      completion -> the text of its final answer; phrases.py the words around answers
    notation.py     LaTeX, Unicode and plain text -> one spelling
    expression.py   a small expression tree (`Node`); grammar.py reads it, scanner.py steps through the characters
    exact.py        rational trees -> exact fractions, with a bound on their size
    units.py        units, money, percent, number words
    values.py       the kinds of answer: scalar, tuple, list, set, interval, relation, matrix, text...
    reader.py       one spelling -> one of those kinds; leaves.py numbers and words, sets.py intervals
    compare.py      when two values are the same answer; scalars.py for numbers and expressions
    judge.py        gold text and answer text -> agreement
    algebra.py      identities of expressions, in a worker process only (mpmath, sympy, math-verify's LaTeX parser)

Everything but `algebra` is plain Python that runs in the caller's process in time linear in the text.
"""
