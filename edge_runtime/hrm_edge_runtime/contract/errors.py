"""The base of the errors that `import hrm_edge` raises."""


class Error(Exception):
    """The base of every error of this package; its text is one sentence with the remedy."""
