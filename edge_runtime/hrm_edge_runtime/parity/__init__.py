"""Do two engines say the same, segment by segment? Numpy alone; start reading at `walk.py`."""
