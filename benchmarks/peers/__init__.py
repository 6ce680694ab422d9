"""The other systems, each a module that runs as its own process and prints case results."""
