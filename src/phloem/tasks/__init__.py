"""Tasks: prompts, gold answers, rewards."""
