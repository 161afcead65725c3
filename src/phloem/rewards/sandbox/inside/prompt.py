"""Code that a completion continues, as a program of its own."""

from types import CodeType


def compile_prompt(prompt: str) -> CodeType:
    """The prompt compiled alone; one that stops at `def f(x):` gets an empty body. Raises SyntaxError."""
    try:
        return compile(prompt, "prompt", "exec")
    except SyntaxError:
        return compile(f"{prompt.rstrip()}\n    pass\n", "prompt", "exec")
