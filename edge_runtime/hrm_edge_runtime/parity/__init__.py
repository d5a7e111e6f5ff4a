"""Compares two engines segment by segment, with numpy alone. Read `walk.py` first."""
