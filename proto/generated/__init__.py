"""Code generated from proto/sublet.proto; see proto/generate.py."""
