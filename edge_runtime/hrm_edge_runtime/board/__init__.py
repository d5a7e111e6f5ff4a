"""The machine beneath: sensors for metrics, and what a doctor asks of it. Nothing is ever changed."""
