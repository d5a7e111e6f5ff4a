"""`hrm-solve`: reads puzzles, has them solved by a server or a bundle, tells what came of them."""
