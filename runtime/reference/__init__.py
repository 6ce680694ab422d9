"""Writes the reference pages that are made from the code; nothing of the runtime imports this."""
