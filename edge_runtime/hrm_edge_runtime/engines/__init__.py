"""Engines: one segment over the dense prefix of slots, worn in several coats behind one protocol."""
