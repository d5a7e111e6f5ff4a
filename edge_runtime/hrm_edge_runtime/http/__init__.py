"""The HTTP process: reads and admits requests, and answers in the notation it was asked in."""
