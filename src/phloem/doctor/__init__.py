"""What can be wrong with a run's data, reward and prompts, found before a model loads."""

from phloem.doctor.examination import examine
from phloem.doctor.findings import Finding, Level, Report

__all__ = ["Finding", "Level", "Report", "examine"]
