"""The only room that knows protobuf classes: plain values become bytes, and bytes
checked values.

`codecs` derives both directions from one declaration; `frames` and `methods` are such declarations;
`errors` maps errors to gRPC statuses. Nothing here opens a connection.
"""
