"""One spelling for the many ways an answer is written: LaTeX macros, Unicode symbols, spacing, delimiters.

`normalise` never changes what an expression means. Operators become single characters (`\\leq` is `≤`), fonts and
sizes vanish, `\\text`-like macros become `\\text{...}`. Every pattern here is linear in the length of the text.
"""

from __future__ import annotations

import re

__all__ = ["TEXT", "normalise", "split_top", "squeeze", "strip_brackets"]

OPENING = "([{"
CLOSING = ")]}"

_SYMBOLS = {
    "−": "-", "–": "-", "—": "-", "×": "*", "·": "*", "⋅": "*", "∗": "*", "÷": "/", "⁄": "/", "′": "'", "’": "'",
    "“": '"', "”": '"', "：": ":", "，": ",", "º": "°", "\u00a0": " ", "\u2009": " ", "\u202f": " ", "\t": " ",
    "π": "\\pi ", "θ": "\\theta ", "α": "\\alpha ", "β": "\\beta ", "λ": "\\lambda ", "φ": "\\phi ", "ω": "\\omega ",
    "μ": "\\mu ", "σ": "\\sigma ", "γ": "\\gamma ", "√": "\\sqrt ", "ℝ": "\\mathbb{R}", "⩽": "≤", "⩾": "≥",
    "½": " 1/2", "⅓": " 1/3", "⅔": " 2/3", "¼": " 1/4", "¾": " 3/4", "€": "\\text{ euros }", "£": "\\text{ pounds }",
    "⟨": "\\langle ", "⟩": "\\rangle ", "⌊": "\\lfloor ", "⌋": "\\rfloor ", "⌈": "\\lceil ", "⌉": "\\rceil ",
    "\r\n": "\n", "\r": "\n", "...": "…",
}  # fmt: skip
_SUPERSCRIPTS = str.maketrans("⁰¹²³⁴⁵⁶⁷⁸⁹⁻", "0123456789-")

_SILENT = """left right big Big bigg Bigg bigl bigr Bigl Bigr middle displaystyle textstyle scriptstyle limits nolimits
mathstrut nobreak rm it bf"""
# Macro -> replacement. Every name is matched whole, so \le never eats the start of \left.
_MACROS = {
    **dict.fromkeys(_SILENT.split(), ""),
    **dict.fromkeys(["quad", "qquad", "enspace", "thinspace"], " "),
    **dict.fromkeys(["dfrac", "tfrac", "cfrac"], "\\frac"),
    **dict.fromkeys(["dbinom", "tbinom"], "\\binom"),
    **dict.fromkeys(["cdot", "times", "ast"], "*"),
    **dict.fromkeys(["le", "leq", "leqslant", "leqq"], "≤"),
    **dict.fromkeys(["ge", "geq", "geqslant", "geqq"], "≥"),
    **dict.fromkeys(["ne", "neq"], "≠"),
    **dict.fromkeys(["approx", "simeq", "thickapprox"], "≈"),
    **dict.fromkeys(["ldots", "dots", "cdots", "dotsc", "dotsb"], "…"),
    **dict.fromkeys(["emptyset", "varnothing"], "∅"),
    **dict.fromkeys(["setminus", "backslash", "smallsetminus"], "∖"),
    **dict.fromkeys(["vert", "lvert", "rvert", "mid"], "|"),
    **dict.fromkeys(["lbrace"], "\\{"),
    **dict.fromkeys(["rbrace"], "\\}"),
    **dict.fromkeys(["lbrack"], "["),
    **dict.fromkeys(["rbrack"], "]"),
    **dict.fromkeys(["circ", "degree", "degrees"], "°"),
    **dict.fromkeys(["wedge", "land"], "\\text{ and }"),
    **dict.fromkeys(["vee", "lor"], "\\text{ or }"),
    "lt": "<", "gt": ">", "div": "/", "pm": "±", "mp": "∓", "in": "∈", "cup": "∪", "cap": "∩", "infty": "∞",
    "colon": ":", "prime": "'", "varphi": "\\phi", "varepsilon": "\\epsilon", "vartheta": "\\theta",
    "sim": "~", "percent": "%", "dollar": "\\$", "phantom": "", "hspace": "",
}  # fmt: skip
_TEXT_MACROS = (
    r"text|mbox|textbf|textrm|textit|textnormal|textsf|texttt|hbox|mathrm|mathbf|mathit|mathsf|operatorname\*?|boldsymbol|bm|"
    r"emph"
)
_MACRO = re.compile(r"\\([A-Za-z]+)")
TEXT = re.compile(rf"\\(?:{_TEXT_MACROS})\s*\{{([^{{}}]*)\}}")
_SPACING = re.compile(r"\\[,;:> ~]|~|\\hspace\{[^{}]*\}")
_JOINED = re.compile(r"(?<=[0-9A-Za-z]) +(?=[0-9A-Za-z])")
_NAMED_FUNCTIONS = {"sin", "cos", "tan", "cot", "sec", "csc", "log", "ln", "exp", "gcd", "lcm", "arcsin", "arccos",
                    "arctan", "sinh", "cosh", "tanh"}  # fmt: skip


def normalise(text: str) -> str:
    """The text in the reader's spelling."""
    text = re.sub(r"\s+", " ", text)
    for old, new in _SYMBOLS.items():
        if old in text:
            text = text.replace(old, new)
    text = re.sub(r"[⁰¹²³⁴⁵⁶⁷⁸⁹⁻]+", lambda m: "^{" + m.group().translate(_SUPERSCRIPTS) + "}", text)
    text = re.sub(r",\\!\s*(?=\d{3})", ",", text).replace("\\\\", "\x01")  # thousands; row ends of a matrix kept whole
    text = text.replace("\\!", "").replace("{,}", ",").replace("\\%", "%").replace("\\#", "#").replace("\\&", "&")
    text = text.replace("\\(", " ").replace("\\)", " ").replace("\\[", " ").replace("\\]", " ")
    text = text.replace("\\$", "\x00").replace("$", " ").replace("\x00", "\\$")
    text = TEXT.sub(_plain_text, text)
    text = _SPACING.sub(" ", text)
    text = _MACRO.sub(_macro, text)
    for power in ("^{°}", "^ °", "^°"):
        text = text.replace(power, "°")
    text = re.sub(r"\*\*(?=\s*[-\d(a-zA-Z\\])", "^", text)  # a plain-text power
    return re.sub(r"\s+", " ", text.replace("\x01", "\\\\")).strip()


def _plain_text(match: re.Match[str]) -> str:
    inner = match.group(1)
    bare = inner.strip()
    if bare in _NAMED_FUNCTIONS:
        return f"\\{bare} "
    is_text = match.group().startswith(("\\text", "\\mbox"))
    if len(bare) == 1 and bare.isalpha() and (not is_text or bare in "ei"):
        return f"{{{bare}}}"  # \mathrm{e} is the letter e
    return f"\\text{{{inner}}}"


def _macro(match: re.Match[str]) -> str:
    name = match.group(1)
    new = _MACROS.get(name)
    if new is None:
        return match.group()
    return new + " " if new.startswith("\\") and new[1:].isalpha() else new


def squeeze(text: str) -> str:
    """The text without spaces, but for those that keep two words or numbers apart: "2 1/2" is not "21/2"."""
    return _JOINED.sub("\x00", text).replace(" ", "").replace("\x00", " ")


def split_top(text: str, separators: tuple[str, ...]) -> list[str] | None:
    """Split where a separator stands outside every bracket and environment; None when brackets do not balance.

    Brackets of any shape pair with each other, because (0,1] is one.
    """
    parts, depth, start, at = [], 0, 0, 0
    while at < len(text):
        char = text[at]
        if text.startswith("\\begin{", at):
            depth += 1
        elif text.startswith("\\end{", at):
            depth -= 1
        if char == "\\" and text[at + 1 : at + 2] == "\\":
            at += 2
            continue
        if char in OPENING or text.startswith(("\\langle", "\\lfloor", "\\lceil"), at):
            depth += 1
        elif char in CLOSING or text.startswith(("\\rangle", "\\rfloor", "\\rceil"), at):
            depth -= 1
            if depth < 0:
                return None
        elif depth == 0:
            hit = next((s for s in separators if text.startswith(s, at)), None)
            if hit is not None:
                parts.append(text[start:at])
                at = start = at + len(hit)
                continue
        at += 1
    return [*parts, text[start:]] if depth == 0 else None


def strip_brackets(text: str, opening: str = "{", closing: str = "}") -> str:
    """Drop bracket pairs that enclose the whole text: "{5}" is "5"; "{1}{2}" stays."""
    while len(text) >= 2 and text[0] == opening and text[-1] == closing:
        depth, at = 0, 0
        for at, char in enumerate(text):  # noqa: B007 - where the first bracket closes
            depth += (char == opening) - (char == closing)
            if depth == 0:
                break
        if at < len(text) - 1 or text[-2] == "\\":
            return text
        text = text[1:-1].strip()
    return text
