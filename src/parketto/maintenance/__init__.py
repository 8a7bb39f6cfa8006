"""Maintenance of many datasets by a policy file: `load` validates it, `run` does what is due."""

from parketto.maintenance.files import DatasetPolicy, PolicyFile, load
from parketto.maintenance.run import run
from parketto.planning.policy import Budget, ClusterRule, CompactRule, Policy, VacuumRule

__all__ = [
    "Budget",
    "ClusterRule",
    "CompactRule",
    "DatasetPolicy",
    "Policy",
    "PolicyFile",
    "VacuumRule",
    "load",
    "run",
]
