"""`python -m benchmarks.migration` runs the experiment."""

from benchmarks.migration.experiment import main

if __name__ == "__main__":
    main()
