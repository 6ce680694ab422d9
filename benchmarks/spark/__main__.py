"""`python -m benchmarks.spark` runs the experiment."""

from benchmarks.spark.experiment import main

if __name__ == "__main__":
    main()
