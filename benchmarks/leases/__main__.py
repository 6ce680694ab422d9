"""`python -m benchmarks.leases` runs the experiment."""

from benchmarks.leases.experiment import main

if __name__ == "__main__":
    main()
