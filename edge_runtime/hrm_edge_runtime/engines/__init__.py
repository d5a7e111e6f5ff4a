"""Engines run one segment over the dense prefix of slots; several implement one protocol."""
