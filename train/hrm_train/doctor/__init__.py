"""What stands in the way of training on this machine, and the commands that mend it (the doctor runs none of them).

Each check asks a `Probe` and returns Findings; what it makes of an answer is a pure function of text.
"""

from hrm_train.doctor.examination import findings

__all__ = ["findings"]
