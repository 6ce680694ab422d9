"""`python -m benchmarks.staging` runs the experiment."""

from benchmarks.staging.experiment import main

if __name__ == "__main__":
    main()
