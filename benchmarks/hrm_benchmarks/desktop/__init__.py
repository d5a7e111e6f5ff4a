"""Training speed beside a plain re-statement of the published training step; the only part of this room with torch."""
