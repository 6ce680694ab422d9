"""What all measurements share: processes, the machine's noise, workloads, results and tables.

It measures nothing by itself but Sublet on the common workloads (`sublet_cases.py`).
"""
