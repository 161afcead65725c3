"""Rows of our own in the columns of each benchmark's hub data set, and a small model that can be evaluated on them."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import torch
from tiny_models import tiny_model
from tiny_tokenizers import QWEN, byte_level

HUB_ROWS: dict[str, list[dict[str, Any]]] = {
    "aime24": [{"id": 60, "problem": "What is 2 + 2?", "answer": "004", "solution": "", "url": ""}],
    "math500": [{"unique_id": "test/a/1.json", "problem": "Halve $1$.", "answer": "\\frac{1}{2}", "level": 1}],
    "amc23": [{"id": 0, "question": "What is 3 - 1?", "answer": "2", "url": ""}],
    "minerva": [{"question": "What is $10^3$?", "answer": "1000"}],
    "olympiadbench": [{"id": 7, "question": "Solve $x^2 = 1$.", "final_answer": ["1", "-1"]}],
    "gsm8k": [{"question": "Two and two?", "answer": "2 + 2 = <<2+2=4>>4\n#### 4"}],
    "humaneval": [
        {
            "task_id": "H/0",
            "prompt": 'def twice(x):\n    """Twice x."""\n',
            "canonical_solution": "    return 2 * x\n",
            "test": "def check(candidate):\n    assert candidate(2) == 4\n",
            "entry_point": "twice",
        }
    ],
    "mbpp": [
        {
            "task_id": 11,
            "text": "Write a function that doubles.",
            "code": "def twice(x): return 2 * x",
            "test_list": ["assert twice(2) == 4", "assert twice(3) == 6"],
            "test_setup_code": "",
        }
    ],
}


def write(folder: Path, name: str, rows: list[dict[str, Any]]) -> Path:
    path = folder / name
    path.write_text("".join(json.dumps(row) + "\n" for row in rows), encoding="utf-8")
    return path


def digits_model(folder: Path, seed: int = 0) -> str:
    """A random model that writes mostly digits, so that some of its answers to one-digit problems are right."""
    tokenizer = byte_level(QWEN)
    model = tiny_model("llama", seed=seed, vocab_size=len(tokenizer))
    written = torch.zeros(len(tokenizer), 1)
    written[tokenizer.convert_tokens_to_ids(list("0123456789"))] = 1.0
    written[tokenizer.convert_tokens_to_ids("<|eot|>")] = 1.3
    common = torch.randn(1, model.config.hidden_size)  # in every embedding, so in every last state
    model.get_input_embeddings().weight.data += 4 * common
    head = model.get_output_embeddings().weight
    head.data = written * (0.5 * head.data + 1.5 * common / common.norm())
    model.save_pretrained(folder)
    tokenizer.save_pretrained(folder)
    return str(folder)


def one_digit_problems(number: int) -> list[dict[str, Any]]:
    return [{"id": n, "problem": f"{n}", "answer": str(2 - n % 2)} for n in range(number)]
