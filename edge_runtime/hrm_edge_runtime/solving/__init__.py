"""What `hrm-solve` does: read puzzles, have them solved by a server or a bundle, tell what came of them."""
