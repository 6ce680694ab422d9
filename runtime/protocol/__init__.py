"""What travels between processes, as plain values, and the one module that turns them into protobuf
and back. Nothing here opens a connection or decides anything.
"""
