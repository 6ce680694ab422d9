"""`python -m benchmarks.backfill` runs the experiment."""

from benchmarks.backfill.experiment import main

if __name__ == "__main__":
    main()
