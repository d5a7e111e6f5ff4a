"""The engine process and the client that the HTTP process holds of it; never imports `http`."""
