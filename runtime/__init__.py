"""The worker, its clients and its command line: everything that waits, sends or starts. What
chooses without waiting is in `scheduler`, what is kept in `statestore`, what users declare in
`functions`.
"""
