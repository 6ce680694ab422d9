"""The only module that knows protobuf classes: turns them into our types and back."""
