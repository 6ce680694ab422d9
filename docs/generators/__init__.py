"""Writes the pages of docs/ that are made from the code: `python -m docs.generators docs`.

It is no part of the product, and nothing of the product imports it.
"""
