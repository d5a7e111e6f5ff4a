"""The server: an HTTP process that admits and answers, and an engine process that owns the lane."""
