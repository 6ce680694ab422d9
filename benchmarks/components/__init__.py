"""What single parts of Sublet cost, each a script of its own: `python -m
benchmarks.components.NAME`. Experiments that need apps and loads of their own have folders
beside this one.
"""
