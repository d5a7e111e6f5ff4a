"""The edge runtime: opens a bundle, steps puzzles in slots until they halt, and answers over HTTP. Never imports torch."""
