from benchmarks.elasticity.real.experiment import main

if __name__ == "__main__":
    main()
