"""The machine beneath: its sensors, its memory, and how it is set. Nothing is ever changed."""
