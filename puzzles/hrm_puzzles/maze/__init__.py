"""Mazes."""
