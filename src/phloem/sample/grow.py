"""Where segments end and fork: no model, no tensors.

A closing tag is recognised in the bytes of the sampled tokens. For each vocabulary id and each number of tag bytes
already matched, a table says how many are matched after that token, so a step costs one look-up per row whatever the
tag's tokens are. A tag can end inside a token (`></`, `>\\n`): the token stays whole and belongs to the thought.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from enum import IntEnum
from typing import Any

import numpy as np

from phloem.sample.sampler import ForkPlan, SampleError
from phloem.tree import Finish, Group, Segment

__all__ = ["End", "Growth", "StageTable", "Tables", "tag_table", "token_bytes"]


class End(IntEnum):
    """`Finish` as a number, for arrays; RUNNING: the segment goes on; FORCED: its closing text is to be written."""

    RUNNING = 0
    FORK = 1
    STOP = 2
    LENGTH = 3
    FORCED = 4

    @property
    def finish(self) -> Finish:
        return Finish[self.name]


def _byte_of_character() -> dict[str, int]:
    """The alphabet in which byte-level tokenizers write bytes: printable Latin-1 as it is, the others from U+0100."""
    plain = [*range(0x21, 0x7F), *range(0xA1, 0xAD), *range(0xAE, 0x100)]
    table = {chr(b): b for b in plain}
    table.update({chr(0x100 + n): b for n, b in enumerate(b for b in range(0x100) if b not in plain)})
    return table


def token_bytes(tokenizer: Any, size: int) -> list[bytes]:
    """The bytes each id stands for in running text, for ids 0..size-1; ids without a token give no bytes.

    A special token stands for its own text (`<|im_end|>`), as it does in decoded completions.

    Raises:
        SampleError: a tokenizer whose tokens are not read as bytes (neither byte-level nor SentencePiece).
    """
    decoder = json.loads(tokenizer.backend_tokenizer.to_str())["decoder"] or {}
    kinds = {decoder.get("type"), *(d["type"] for d in decoder.get("decoders", ()))}
    alphabet = _byte_of_character()
    added = {int(i): token.content for i, token in tokenizer.added_tokens_decoder.items()}
    pieces = tokenizer.convert_ids_to_tokens(list(range(min(size, len(tokenizer)))))
    out: list[bytes] = []
    for index, piece in enumerate(pieces):
        if piece is None:
            out.append(b"")
        elif index in added:
            out.append(added[index].encode())
        elif "ByteLevel" in kinds:
            out.append(bytes(alphabet[c] for c in piece) if all(c in alphabet for c in piece) else piece.encode())
        elif "ByteFallback" in kinds and len(piece) == 6 and piece.startswith("<0x"):
            out.append(bytes([int(piece[3:5], 16)]))
        elif kinds & {"Replace", "Metaspace"}:
            out.append(piece.replace("\u2581", " ").encode())
        else:
            raise SampleError(
                f"the text of single tokens cannot be read from a {type(tokenizer).__name__} with the decoder "
                f"{sorted(map(str, kinds))}: forking at a tag needs a byte-level or SentencePiece tokenizer"
            )
    return out + [b""] * (size - len(out))


def _automaton(tag: bytes) -> np.ndarray:
    """Matched tag bytes after one more byte, shape (len(tag) + 1, 256); the last state keeps itself."""
    n = len(tag)
    step = np.zeros((n + 1, 256), dtype=np.int16)
    step[n] = n
    fallback = 0
    for state in range(n):
        if state:
            step[state] = step[fallback]
            fallback = int(step[fallback, tag[state]])
        step[state, tag[state]] = state + 1
    return step


def tag_table(pieces: Sequence[bytes], tag: str) -> np.ndarray:
    """Matched tag bytes after a token, int16 of shape (len(tag in bytes) + 1, V), indexed [matched before, id].

    The last row and value, len(tag), mean that the tag is complete.
    """
    step = _automaton(tag.encode())
    lengths = np.array([len(p) for p in pieces])
    flat = np.frombuffer(b"".join(pieces), dtype=np.uint8)
    starts = np.cumsum(lengths) - lengths
    state = np.repeat(np.arange(len(step), dtype=np.int16)[:, None], len(pieces), axis=1)
    for j in range(int(lengths.max(initial=0))):
        alive = np.flatnonzero(lengths > j)
        state[:, alive] = step[state[:, alive], flat[starts[alive] + j]]
    return state


@dataclass
class StageTable:
    """The stop conditions of a plan's stages, for arrays of rows.

    Attributes:
        tags: per stage, the table of its closing tag, or None.
        is_eos_V: True for every id that ends a completion.
        closing: per stage, the ids of the text that closes a segment by force; none where nothing is forced.
    """

    plan: ForkPlan
    tags: list[np.ndarray | None]
    is_eos_V: np.ndarray
    closing: list[np.ndarray]

    @classmethod
    def build(
        cls,
        plan: ForkPlan,
        pieces: Sequence[bytes],
        eos_ids: Sequence[int],
        encode: Callable[[str], Sequence[int]] = lambda _: (),
    ) -> StageTable:
        """Makes the tables of a plan for a vocabulary; `encode` gives the ids of a closing text.

        Raises:
            SampleError: a closing text that leaves no token of its stage's budget to be sampled.
        """
        is_eos = np.zeros(len(pieces), dtype=bool)
        is_eos[list(eos_ids)] = True
        tags = [None if s.until is None else tag_table(pieces, s.until) for s in plan.stages]
        closing = [np.array([] if s.closing is None else encode(s.closing), dtype=np.int64) for s in plan.stages]
        for stage, ids in zip(plan.stages, closing, strict=True):
            if len(ids) >= stage.max_tokens:
                raise SampleError(
                    f"the closing text {stage.closing!r} has {len(ids)} tokens and the budget is {stage.max_tokens}: "
                    "raise the budget or shorten the text"
                )
        return cls(plan, tags, is_eos, closing)

    def advance(
        self, stages: np.ndarray, matched: np.ndarray, lengths: np.ndarray, tokens: np.ndarray
    ) -> tuple[np.ndarray, np.ndarray]:
        """What one sampled token does to each of n rows; all arrays have shape (n,).

        Args:
            stages: stage of the row's segment.
            matched: bytes of the stage's tag matched before the token.
            lengths: tokens of the segment, this one included.
            tokens: the sampled ids.

        Returns:
            Tag bytes matched now, and an `End` for each row. An EOS id ends a segment whatever else it does; the
            closing text counts before the budget.
        """
        after = matched.copy()
        for index, table in enumerate(self.tags):
            if table is not None:
                rows = np.flatnonzero(stages == index)
                after[rows] = table[matched[rows], tokens[rows]]
        return after, self._ends(stages, after, lengths, tokens)

    def _ends(self, stages: np.ndarray, matched: np.ndarray, lengths: np.ndarray, tokens: np.ndarray) -> np.ndarray:
        """An `End` for each row; `matched` counts the token, everything else is as in `advance`."""
        ends = np.full(len(tokens), End.RUNNING, dtype=np.int64)
        for index, (stage, table) in enumerate(zip(self.plan.stages, self.tags, strict=True)):
            rows = np.flatnonzero(stages == index)
            forks_at_budget = table is None and index + 1 < len(self.plan.stages)
            forced = len(self.closing[index])
            full = rows[lengths[rows] >= stage.max_tokens - forced]
            ends[full] = End.FORCED if forced else End.FORK if forks_at_budget else End.LENGTH
            if table is not None:
                ends[rows[matched[rows] == len(table) - 1]] = End.FORK
        ends[self.is_eos_V[tokens]] = End.STOP
        return ends

    def end_of(self, stage: int, tokens: np.ndarray) -> tuple[int, End]:
        """Where a segment that is already sampled ends: at the first token at which `advance` would end it.

        Args:
            stage: of the segment.
            tokens: its ids and possibly more, int64 (n,), n >= 1.

        Returns:
            How many of the tokens belong to the segment, and how it ends; RUNNING if it would go on after all n.
        """
        n, table = len(tokens), self.tags[stage]
        matched = np.zeros(n, dtype=np.int64)
        if table is not None:
            state = 0
            for i, token in enumerate(tokens.tolist()):  # each match begins where the one before it stopped
                matched[i] = state = int(table[state, token])
        ends = self._ends(np.full(n, stage), matched, np.arange(1, n + 1), tokens)
        ended = np.flatnonzero(ends != End.RUNNING)
        return (n, End.RUNNING) if not len(ended) else (int(ended[0]) + 1, End(int(ends[ended[0]])))


class Tables:
    """The stop conditions of plans, each made once.

    Args:
        tokenizer: only the bytes of single tokens are read from it, for plans with a closing tag, and the ids of
            closing texts.
        vocabulary: ids the model knows.
        eos_ids: ids that end a completion.
    """

    def __init__(self, tokenizer: Any, vocabulary: int, eos_ids: Sequence[int]) -> None:
        self._tokenizer, self._vocabulary, self._eos_ids = tokenizer, vocabulary, tuple(eos_ids)
        self._pieces: list[bytes] | None = None
        self._made: dict[ForkPlan, StageTable] = {}

    def __call__(self, plan: ForkPlan) -> StageTable:
        if plan not in self._made:
            if all(stage.until is None for stage in plan.stages):
                pieces = [b""] * self._vocabulary
            else:
                self._pieces = self._pieces or token_bytes(self._tokenizer, self._vocabulary)
                pieces = self._pieces
            self._made[plan] = StageTable.build(plan, pieces, self._eos_ids, self._encode)
        return self._made[plan]

    def _encode(self, text: str) -> list[int]:
        return list(self._tokenizer(text, add_special_tokens=False).input_ids)


@dataclass
class Growth:
    """The finished segments of one prompt, by branch: `(2,)` is the third thought, `(2, 0)` its first answer."""

    prompt: np.ndarray
    done: dict[tuple[int, ...], Segment] = field(default_factory=dict)

    def add(self, branch: tuple[int, ...], tokens: np.ndarray, logprobs: np.ndarray, finish: Finish) -> None:
        """Keeps a segment; logprobs are NaN where the token was forced."""
        forced = np.isnan(logprobs)
        self.done[branch] = Segment(tokens, sampled=~forced if forced.any() else None, logprobs=logprobs, finish=finish)

    def group(self) -> Group:
        """The segments in depth-first order of their branch, whatever the order in which they ended."""
        order = sorted(self.done)
        index = {branch: s for s, branch in enumerate(order)}
        segments: list[Segment] = []
        for branch in order:
            parent = index[branch[:-1]] if len(branch) > 1 else None
            segments.append(replace(self.done[branch], parent=parent))
        return Group(self.prompt, tuple(segments))
