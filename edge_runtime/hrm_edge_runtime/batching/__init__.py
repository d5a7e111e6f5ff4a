"""Halting-aware batching: gives slots to puzzles, steps them, and refills a slot when it halts."""
