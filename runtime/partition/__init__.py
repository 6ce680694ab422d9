"""Everything that one partition decides: events in, effects out, without I/O, clock or randomness.
Running handlers, storing and sending are not here: `execution`, `hosting` and `statestore` carry
effects out.
"""
