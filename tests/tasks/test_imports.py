"""Tasks and rewards are cheap to import: nothing heavy is loaded before it is needed."""

import subprocess
import sys


def test_no_heavy_module_is_loaded():
    heavy = "{'torch', 'transformers', 'datasets', 'pyarrow', 'reasoning_gym', 'sympy', 'math_verify'}"
    modules = "phloem.tasks, phloem.tasks.data, phloem.tasks.reasoning_gym, phloem.rewards"
    code = f"import sys, {modules}; print(sorted({heavy} & set(sys.modules)))"
    result = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert result.stdout.strip() == "[]"
