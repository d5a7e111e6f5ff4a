"""What is promised of the server, measured on a real one: load, throughput, soak, start."""
