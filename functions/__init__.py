"""What a function author sees, and the value types every other layer shares."""
