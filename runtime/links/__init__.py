"""Connections that carry frames in order until they end: gRPC streams, the raw lane, the server of
both. What frames mean, and what is sent again after a loss, is not known here.
"""
