"""The edge runtime: opens a bundle, steps puzzles in slots until they halt, answers over HTTP, without torch."""
