"""The words around answers: what announces one, joins two, denies, retracts or doubts. English; verbose patterns.

Every pattern is anchored or starts with fixed words, and none nests one unbounded repetition in another.
"""

from __future__ import annotations

import re

__all__ = [
    "BETWEEN", "BOUND", "CONDITION", "COPULA", "CORRECTION", "CUT", "DENIAL", "DOUBT", "MATH", "NOT_BEFORE", "NUMBER",
    "OR_MORE", "PHRASE", "RETRACTION", "SCRATCHED",
]  # fmt: skip


def _words(pattern: str) -> re.Pattern[str]:
    return re.compile(pattern, re.IGNORECASE | re.VERBOSE)


PHRASE = _words(r"""
    \b(?: final\s+answer | answer | solution (?:\s+to\s+the\s+problem)? | result
        | (?:correct|right|best) \s+ (?:option|choice) )\b
    (?:\s+to\s+(?:the|this)\s+\w+)?
    (?:\s+(?:therefore|thus|then|so|hence|simply|just|actually))?
    [\s*_]{0,6} (?: : | \bis\b | \bequals\b | = ) (?:\s*:)?
    (?!\s*\bnot\b) [ \t]*
""")
"""Announces an answer: "the final answer is", "Answer:", "the solution to the problem is"."""

DENIAL = _words(r"""
    ^(?: not\b | n't\b | (?:still\s+)?(?:unknown|unclear|undetermined|uncertain)\b | probably\s+not\b
       | neither\b.{0,40}\bnor\b | anything\b | something\b | none\s+of\b | either\b | impossible\s+to\b )
""")
"""What follows an announcement when no answer does."""

NOT_BEFORE = _words(r"""
    (?: \bnot | n't | \bnever | \bcannot\ be | \brather\ than | \binstead\ of )
    \s*(?: be | equal(?:\s+to)? | the\ answer | simply | just )?
    [\s:$*\\(\[=]*$
""")
"""Stands before a box that is denied."""

RETRACTION = _words(r"""
    ^[\s$*.,;:!)\\\]-]{0,20}
    (?: (?:but|no|wait|hmm|oops|actually|sorry)\b [\s,.!-]{0,5} ){0,3}
    (?: (?:which|that|this|it|and|but) (?:\s+answer)? \s* )?
    (?: is | was | 's | seems | looks | must\ be ) \s+
    (?: (?:clearly|obviously|actually|definitely) \s+ )?
    (?: wrong | incorrect | false\b | a\s+mistake | an\s+error | impossible
      | not\s+(?: right | correct | the\s+(?:final\s+|right\s+|correct\s+)?answer | it\b | possible | true | valid ) )
""")
"""Stands after a box that is taken back: "is wrong", "- but that is not the answer"."""

SCRATCHED = _words(r"""
    ^[\s$*.,;:!)\\\]-]{0,20} (?: wait | no | hmm | oops | scratch\ that | ignore\ that )\b
    [^\n]{0,65}? (?: wrong | incorrect | mistake | scratch\ that | not\ right | ignore\ that | made\ an\ error )
    | ^[\s$*.,;:!)\\\]-]{0,20} (?: scratch | ignore )\ that\b
""")

CORRECTION = _words(r"\b(?: wait | actually | correction | sorry | oops | no )\b")

OR_MORE = _words(r"""
    ^[\s$*)\\\]]*,?\s* or \s+ (?:(?:maybe|perhaps|possibly|even|else)\s+)? [$\\(*\s]* ([-+]?[\d.]+)
""")
"""A hedge right after a box: "or maybe 4"."""

BETWEEN = _words(r"""
    ^[\s$*.,;)(\\\]\[]* (?:\\text\{)? \s*
    ( , | ; | & | or\s+(?:maybe|perhaps|possibly|even|else) | (?:and|or)\s+also | and | or )?
    [\s$*(,\\\]\[]* \}? \s* (?: \\quad | \\text\{\s*\} )? [\s$*,]*
    (?: [A-Za-z] (?:_\{?\w{1,3}\}?)? \s*=\s* )? [\s$]*$
""")
"""All of the text between two boxes when they form one answer; the group is the joining word."""

DOUBT = _words(r"""
    \b(?: not | never | cannot | can't | don't | doesn't | isn't | aren't | won't | unknown | unclear | unsure
        | uncertain | impossible\ to | maybe | perhaps | possibly | might | could\ be | guess | whether | considered
        | tried | either )\b
    | \?
""")

CONDITION = _words(r"\b(?: if | assume | suppose | assuming | supposing )\b")

BOUND = _words(r"""
    \b(?: less | more | greater | fewer | larger | smaller | higher | lower )\s+than\b
    | \b(?: at\s+least | at\s+most | almost | nearly | between | up\s+to | under | over | below | above )\s+ (?=\$?\d)
    | \b\d+\s+times\s+(?!\d) | \b below\s+zero\b
""")
"""A number that bounds or scales another instead of stating one."""

COPULA = _words(r"""
    (?: \b(?: is | are | was | were | be | equals | equal\ to | gives | gets? | yields | has | have | costs? | makes?
            | earns? | pays? | needs? | takes? | total\ of | exactly | left\ with | becomes | obtain )\b :?
      | = ) \s*
""")

CUT = re.compile(
    r"""
    \s*(?: ,?\s+(?: because | since | where | which | when | as | so | for | due\ to | but | if | assuming | obtained
                  | given | hence | thus | therefore | after | with )\b
         | \s+\((?=[a-z]{2,}) | \.\s*$ | \.\s+(?=[A-Z\\(]) | ;\s | \s+—\s )
    """,
    re.VERBOSE,
)
"""Where the answer ends and its explanation begins."""

MATH = re.compile(
    r"""
    \$\$ [^$]+ \$\$
    | (?<!\\) \$ (?! \s | \d[\d,.]*\*\*) [^$\n]+? (?<![\s\\]) \$ (?!\d)
    | (?<!\\) \$ \s [^$\n]+? \s \$ (?!\d)
    | \\\( (?: [^\\] | \\(?!\)) )+ \\\)
    | \\\[ (?: [^\\] | \\(?!\]) )+ \\\]
    """,
    re.VERBOSE,
)
"""A formula between delimiters. A dollar before a number is money unless its partner stands as a closing one does: not
after a space (or with one on both inner sides) and not before a digit."""

NUMBER = re.compile(
    r"""
    (?<![\w.]) [-+]? \\?\$? \s? (?: \d[\d,]*\.?\d* | \.\d+ ) (?:[eE][-+]?\d+)? (?:\s*/\s*\d+)? (?:\s?\\?%)? (?!\w)
    """,
    re.VERBOSE,
)
