"""The claims of the papers, each a command: what is claimed, what is published, what comes out here, and a verdict."""

from phloem.studies.runner import run_studies
from phloem.studies.study import Bench, Figure, Finding, Study, Verdict

__all__ = ["Bench", "Figure", "Finding", "Study", "Verdict", "run_studies"]
