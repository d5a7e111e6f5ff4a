"""`hrm-solve`: reads puzzles, solves them with a server or a bundle, and reports the outcome."""
