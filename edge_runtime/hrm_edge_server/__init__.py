"""The HTTP process: reads and admits requests, and answers in the notation of each request."""
